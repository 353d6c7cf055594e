"""A plan of the main job's landing, for tests that never connect to a server."""

from pathlib import Path

from examples.access_log.landing import LandingPlan


def landing_plan(folder: Path, line_type: str = "text") -> LandingPlan:
    """Returns a plan whose server does not respond, with all files in the folder."""
    return LandingPlan(
        endpoint="127.0.0.1:1",
        rows_folder=folder / "landed" / "parquet",
        bad_lines_folder=folder / "landed" / "bad",
        line_type=line_type,
        batch_events_max=1,
        is_short=True,
    )

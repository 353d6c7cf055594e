"""Measures Millrace beside a bare gRPC server: `make bench`, or `python tests/bench/run.py --help`."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

# As a script: `tests` is in the repository's directory.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import comparing
from tests.bench.findings import Survey, on_thread
from tests.bench.measuring import ROUNDS, measure
from tests.bench.report import Report
from tests.bench.scenarios.append import append_scenario, append_tls_scenario
from tests.bench.scenarios.append_in_rows import append_in_rows_scenario
from tests.bench.scenarios.append_stream import append_stream_scenario
from tests.bench.scenarios.consume import consume_scenario
from tests.bench.scenarios.consumer import file_consumer_scenario
from tests.bench.scenarios.durable import (
    file_append_100_scenario,
    file_append_scenario,
    file_append_stream_scenario,
    file_consume_scenario,
    file_lone_call_scenario,
    file_small_calls_scenario,
    file_take_scenario,
)
from tests.bench.scenarios.fan_out import file_fan_out_scenario, file_fan_out_stream_scenario
from tests.bench.scenarios.flume import flume_scenario
from tests.bench.scenarios.forwarding import file_forward_chain_scenario, file_forward_scenario
from tests.bench.scenarios.kafka import QUICK_KAFKA_PLAN, KafkaPlan, measure_kafka
from tests.bench.scenarios.lone_token import QUICK_LONE_TOKEN_PLAN, LoneTokenPlan, measure_lone_token
from tests.bench.scenarios.many_channels import QUICK_MANY_CHANNELS_PLAN, ManyChannelsPlan, measure_many_channels
from tests.bench.scenarios.memory import measure_memory
from tests.bench.scenarios.peers import file_peers_scenario
from tests.bench.scenarios.producer import file_producer_scenario
from tests.bench.scenarios.producer_costs import (
    QUICK_PRODUCER_COSTS_PLAN,
    ProducerCostsPlan,
    measure_producer_costs,
)
from tests.bench.scenarios.put_and_take import file_put_and_take_scenario, file_put_and_take_stream_scenario
from tests.bench.scenarios.replicated import QUICK_REPLICATED_PLAN, ReplicatedPlan, measure_replicated
from tests.bench.scenarios.restart import QUICK_PLAN, RestartPlan, measure_restart
from tests.bench.scenarios.small_batches import (
    QUICK_SMALL_BATCHES_PLAN,
    SmallBatchesPlan,
    measure_small_batches,
)
from tests.bench.scenarios.small_calls import lone_call_scenario, small_calls_scenario
from tests.bench.scenarios.small_streams import file_small_streams_scenario
from tests.bench.scenarios.spark import QUICK_SPARK_PLAN, SparkPlan, measure_spark
from tests.bench.scenarios.starts import StartsPlan, measure_starts
from tests.bench.scenarios.taildir import QUICK_TAILDIR_PLAN, TaildirPlan, measure_taildir
from tests.bench.scenarios.take import take_in_rows_scenario, take_scenario
from tests.bench.scenarios.takeovers import QUICK_TAKEOVER_PLAN, TakeoverPlan, measure_takeovers
from tests.bench.world import World, running_world

_QUICK_ROUNDS = 3

SCENARIOS = {
    "append": append_scenario,
    "append_tls": append_tls_scenario,
    "append_stream": append_stream_scenario,
    "take": take_scenario,
    "consume": consume_scenario,
    "small_calls": small_calls_scenario,
    "lone_call": lone_call_scenario,
    "append_rows": append_in_rows_scenario,
    "take_rows": take_in_rows_scenario,
    "file_append": file_append_scenario,
    "file_append_stream": file_append_stream_scenario,
    "file_append_100": file_append_100_scenario,
    "file_small_calls": file_small_calls_scenario,
    "file_small_streams": file_small_streams_scenario,
    "file_lone_call": file_lone_call_scenario,
    "file_take": file_take_scenario,
    "file_consume": file_consume_scenario,
    "file_put_and_take_stream": file_put_and_take_stream_scenario,
    "file_put_and_take_calls": file_put_and_take_scenario,
    "file_producer": file_producer_scenario,
    "file_peers": file_peers_scenario,
    "file_consumer": file_consumer_scenario,
    "file_fan_out": file_fan_out_scenario,
    "file_fan_out_stream": file_fan_out_stream_scenario,
    "file_flume": flume_scenario,
    "file_forward": file_forward_scenario,
    "file_forward_chain": file_forward_chain_scenario,
}
SURVEYS = {
    "producer_costs": Survey(
        "What the producer costs", measure_producer_costs, ProducerCostsPlan(), QUICK_PRODUCER_COSTS_PLAN
    ),
    "lone_token": Survey("Lone calls with a token", measure_lone_token, LoneTokenPlan(), QUICK_LONE_TOKEN_PLAN),
    "file_restart": Survey("File channels coming back", measure_restart, RestartPlan(), QUICK_PLAN),
    "taildir": Survey("Files coming in", on_thread(measure_taildir), TaildirPlan(), QUICK_TAILDIR_PLAN),
    "kafka": Survey("Kafka", on_thread(measure_kafka), KafkaPlan(), QUICK_KAFKA_PLAN),
    "starts": Survey("Starts of the programs", on_thread(measure_starts), StartsPlan(), StartsPlan(_QUICK_ROUNDS)),
    "small_batches": Survey("Small batches", measure_small_batches, SmallBatchesPlan(), QUICK_SMALL_BATCHES_PLAN),
    "many_channels": Survey("Many channels", measure_many_channels, ManyChannelsPlan(), QUICK_MANY_CHANNELS_PLAN),
    "replicated": Survey("Replicated channels", measure_replicated, ReplicatedPlan(), QUICK_REPLICATED_PLAN),
    "takeovers": Survey("Takeovers", on_thread(measure_takeovers), TakeoverPlan(), QUICK_TAKEOVER_PLAN),
    "spark": Survey("Spark", on_thread(measure_spark), SparkPlan(), QUICK_SPARK_PLAN),
}
_MEMORY = "memory"
_NAMES = (*SCENARIOS, _MEMORY, *SURVEYS)
_QUICK_SCALE = 0.25
_WIDTH = 120


def main() -> None:
    """Runs the scenarios and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: for a first impression")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--only", nargs="+", choices=_NAMES, metavar="NAME", help="only these scenarios")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "build",
        help="where file channels are, on the disk that is to be measured",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="measure the server of this checkout beside that of another one, which `make setup` has prepared",
    )
    arguments = parser.parse_args()
    # Without a terminal nothing is wrapped.
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    names = arguments.only or _NAMES
    arguments.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.dir) as scratch:
        if arguments.against is not None:
            results = asyncio.run(_compare(names, console, Path(scratch), arguments.against, is_quick=arguments.quick))
            comparing.show(results, console)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(comparing.document(results), indent=2) + "\n")
            return
        report = asyncio.run(_run(names, console, Path(scratch), is_quick=arguments.quick))
    report.show(console)
    if arguments.json is not None:
        report.save(arguments.json)


async def _run(names: Sequence[str], console: Console, scratch: Path, *, is_quick: bool) -> Report:
    rounds, scale = (_QUICK_ROUNDS, _QUICK_SCALE) if is_quick else (ROUNDS, 1.0)
    report = Report(rounds)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        if not SURVEYS.keys() >= set(names):
            async with running_world(_made(scratch / "world")) as world:
                await _measure_world(names, world, report, progress, scale)
        for name in names:
            if (survey := SURVEYS.get(name)) is not None:
                plan = survey.quick_plan if is_quick else survey.plan
                on_step = partial(progress.advance, progress.add_task(survey.title, total=plan.step_count))
                report.surveys[name] = survey.title, await survey.measure(_made(scratch / name), plan, on_step)
    return report


async def _compare(
    names: Sequence[str], console: Console, scratch: Path, checkout: Path, *, is_quick: bool
) -> comparing.Results:
    python = comparing.python_of(checkout)

    async with running_world(_made(scratch / "world")) as world:
        plan = comparing.Plan(_QUICK_ROUNDS, _QUICK_SCALE) if is_quick else comparing.Plan()
        return await comparing.compare(world, python, comparing.chosen(names, SCENARIOS), plan, console.print)


async def _measure_world(names: Sequence[str], world: World, report: Report, progress: Progress, scale: float) -> None:
    for name in names:
        if name == _MEMORY:
            report.memory = await measure_memory(world)
        elif name in SCENARIOS:
            scenario = SCENARIOS[name](world)
            shown = progress.add_task(scenario.title, total=report.rounds)
            figures = await measure(scenario, report.rounds, scale, partial(progress.advance, shown))
            report.results.append((scenario, figures))


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


if __name__ == "__main__":
    main()

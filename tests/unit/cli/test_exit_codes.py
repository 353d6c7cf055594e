from millrace_client.cli.exit_codes import MEANINGS, ExitCode


def test_meanings_of_all_codes_are_there() -> None:
    """Each exit code has its phrase in the one table that --help shows."""
    assert set(MEANINGS) == set(ExitCode)


def test_exit_codes_once_released_stay_the_same() -> None:
    """Scripts decide by the numbers, so they never change."""
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "REFUSED": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "EMPTY": 4,
        "LATER": 5,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
        "TERMINATED": 143,
    }

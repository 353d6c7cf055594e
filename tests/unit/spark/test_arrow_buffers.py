from array import array

import pyarrow as pa
import pytest

from millrace_spark.arrow_buffers import counting, int32_array, ints, plain


@pytest.mark.parametrize("data_type", [pa.int32(), pa.int64(), pa.int16()])
def test_ints_of_a_slice_are_those_of_the_slice(data_type: pa.DataType) -> None:
    """A slice shares the memory of the whole; its numbers are its own, whatever their width."""
    whole = pa.array(range(10), data_type)
    assert ints(whole) == array("i", range(10))
    assert ints(whole.slice(3, 4)) == array("i", [3, 4, 5, 6])
    assert ints(whole.slice(10)) == ints(pa.array([], data_type)) == array("i")


def test_int32_array_of_ints_gives_them_back() -> None:
    """To Arrow and back nothing changes."""
    for numbers in (array("i"), array("i", [-1, 0, 2**31 - 1])):
        assert ints(int32_array(numbers)) == numbers


def test_counting_a_range_has_its_numbers() -> None:
    """From any number on, also beyond 32 bits."""
    for numbers, data_type in ((range(5), pa.int32()), (range(2**40, 2**40 + 3), pa.int64()), (range(0), pa.int64())):
        counted = counting(numbers, data_type)
        assert (counted.to_pylist(), counted.type) == (list(numbers), data_type)


def test_plain_of_a_dictionary_has_its_values() -> None:
    """What is no dictionary stays as it is."""
    values = pa.array(["a", None, "a", "b"])
    assert plain(values.dictionary_encode()).equals(values)
    assert plain(values) is values

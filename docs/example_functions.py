"""An example of functions of the user: `clusterd serve --functions docs/example_functions.py`."""
# ruff: noqa: ANN001, ANN201, ANN205

import numpy as np
import pyarrow.compute as pc

from clusterd.functions import aggregate, scalar


@scalar("celsius", "double precision -> double precision")
def celsius(fahrenheit):
    """Degrees of Fahrenheit as degrees of Celsius."""
    if (fahrenheit < -459.67).any():
        raise ValueError("colder than cold")
    return (fahrenheit - 32) / 1.8


@scalar("slug", "text -> text", arrow=True)
def slug(title):
    """A title as it stands in an address."""
    return pc.replace_substring_regex(pc.utf8_lower(title), "[^a-z0-9]+", "-")


@scalar("or_zero", "bigint -> bigint", strict=False)
def or_zero(number):
    """0 for NULL."""
    return np.ma.filled(number, 0)


@aggregate(
    "weighted_mean", "double precision, bigint -> double precision", state=["double precision", "bigint"]
)
class WeightedMean:
    """The mean of values by their weights: two sums, kept exactly."""

    @staticmethod
    def add(value, weight):
        return value * weight, weight

    @staticmethod
    def finish(total, weights):
        if (weights == 0).any():
            raise ZeroDivisionError("no weight")
        return total / weights


@aggregate("median", "double precision -> double precision")
def median(values, starts):
    """The middle one of values in order, or the mean of the middle two."""
    size = np.diff(starts)
    low, high = starts[:-1] + (size - 1) // 2, starts[:-1] + size // 2
    return (values[low] + values[high]) / 2

"""Mathematical functions. Those of doubles are the C library's, one value at a time, so that a row gives the
same bits in whatever batch it comes; a result that overflows or vanishes is an error, as in arithmetic.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_math = partial(declared, "mathematics")
_INTEGERS = ("smallint", "integer", "bigint", "uint2", "uint4", "uint8")


def _each(signature: str) -> str:
    return "; ".join(map(signature.format, _INTEGERS))


_ALIKE = _each("{0}, {0} -> {0}")
_D = "double precision -> double precision"
_D2 = "double precision, double precision -> double precision"
_RANGE = "double precision out of range"
_INPUT = "input is out of range"
_LOGARITHM = "cannot take logarithm of zero; cannot take logarithm of a negative number"
_WHOLE = "numeric(s) -> numeric; double precision -> double precision"
_OF_POWER = (
    f"{_RANGE}; zero raised to a negative power is undefined; "
    "a negative number raised to a non-integer power yields a complex result"
)
_NUMERICS = "PostgreSQL has it for numerics too; here they become doubles."

FUNCTIONS: Final = (
    _math("abs",
          "smallint -> smallint; integer -> integer; bigint -> bigint; numeric(s) -> numeric(s); real -> "
          "real; double precision -> double precision", "Without its sign.", "abs(-5)", "5",
          errors="smallint out of range; integer out of range; bigint out of range"),
    _math("sign", "bigint -> bigint; numeric(s) -> numeric; double precision -> double precision",
          "-1, 0 or 1; of NaN NaN.", "sign(-2.5)", "-1.0"),
    _math("round", f"{_WHOLE}; numeric(s), bigint -> numeric(s)",
          "To the nearest whole number, or to so many digits behind the point: a numeric half away from "
          "zero, a double half to even.", "round(2.345::numeric(38,3), 2)", "2.350",
          errors="numeric out of range",
          differs="A numeric keeps its scale when it is rounded to digits, so 2.345 becomes 2.350. DuckDB "
                  "rounds doubles half away from zero."),
    _math("trunc", f"{_WHOLE}; numeric(s), bigint -> numeric(s)",
          "Toward zero, to a whole number or to so many digits behind the point.", "trunc(-2.7)", "-2.0"),
    _math("ceil", _WHOLE, "The nearest whole number that is not less.", "ceil(2.1::numeric(38,1))", "3"),
    _math("ceiling", _WHOLE, "The same as `ceil`.", "ceiling(-2.1)", "-2.0"),
    _math("floor", _WHOLE, "The nearest whole number that is not greater.", "floor(-2.1::numeric(38,1))",
          "-3"),
    _math("power", _D2, "The first to the power of the second; `x ^ y`.", "2 ^ 10", "1024.0",
          errors=_OF_POWER, differs=_NUMERICS),
    _math("pow", _D2, "The same as `power`.", "pow(2, 3)", "8.0", errors=_OF_POWER, differs=_NUMERICS),
    _math("sqrt", _D, "Square root.", "sqrt(-1)", "error: cannot take square root of a negative number",
          errors="cannot take square root of a negative number", differs=_NUMERICS),
    _math("cbrt", _D, "Cube root.", "cbrt(27)", "3.0"),
    _math("exp", _D, "e to the power of it.", "exp(0)", "1.0", errors=_RANGE, differs=_NUMERICS),
    _math("ln", _D, "Natural logarithm.", "ln(1)", "0.0", errors=_LOGARITHM, differs=_NUMERICS),
    _math("log", f"{_D}; {_D2}", "Logarithm to base 10, or to the base given first.", "log(2, 8)", "3.0",
          errors=f"{_LOGARITHM}; division by zero; {_RANGE}", differs=_NUMERICS),
    _math("log10", _D, "Logarithm to base 10.", "log10(1000)", "3.0", errors=_LOGARITHM, differs=_NUMERICS),
    _math("sin", _D, "Sine, of radians.", "sin(0)", "0.0", errors=_INPUT),
    _math("cos", _D, "Cosine, of radians.", "cos(0)", "1.0", errors=_INPUT),
    _math("tan", _D, "Tangent, of radians.", "tan(0)", "0.0", errors=_INPUT),
    _math("cot", _D, "Cotangent, of radians.", "cot(0)", "error: division by zero",
          errors=f"{_INPUT}; division by zero", differs="PostgreSQL has infinity for 0."),
    _math("asin", _D, "Inverse sine.", "asin(2)", "error: input is out of range", errors=_INPUT),
    _math("acos", _D, "Inverse cosine.", "acos(1)", "0.0", errors=_INPUT),
    _math("atan", _D, "Inverse tangent.", "atan(0)", "0.0"),
    _math("atan2", _D2, "The angle of the point (second, first).", "atan2(0, 1)", "0.0"),
    _math("sinh", _D, "Hyperbolic sine.", "sinh(0)", "0.0", errors=_RANGE),
    _math("cosh", _D, "Hyperbolic cosine.", "cosh(0)", "1.0", errors=_RANGE),
    _math("tanh", _D, "Hyperbolic tangent.", "tanh(0)", "0.0"),
    _math("degrees", _D, "Radians as degrees.", "degrees(pi())", "180.0", errors=_RANGE),
    _math("radians", _D, "Degrees as radians.", "radians(180) = pi()", "true"),
    _math("pi", "-> double precision", "The ratio of a circle.", "pi()", "3.141592653589793", nulls="never"),
    _math("isnan", "double precision -> boolean", "Whether it is NaN.", 'isnan("NaN"::float8)', "true",
          differs="DuckDB's, not PostgreSQL's."),
    _math("isfinite", "double precision -> boolean", "Whether it is neither NaN nor infinite.", "isfinite(1)",
          "true", differs="DuckDB's, not PostgreSQL's."),
    _math("isinf", "double precision -> boolean", "Whether it is infinite.", 'isinf("-inf"::float8)', "true",
          differs="DuckDB's, not PostgreSQL's."),
    _math("gcd", "bigint, bigint -> bigint", "Greatest common divisor.", "gcd(-12, 18)", "6",
          errors="bigint out of range"),
    _math("lcm", "bigint, bigint -> bigint", "Least common multiple.", "lcm(4, 6)", "12",
          errors="bigint out of range"),
    _math("factorial", "bigint -> numeric", "Of a whole number up to 33.", "factorial(5)", "120",
          errors=f"numeric out of range; {_INPUT}"),
    _math("width_bucket", "double precision, double precision, double precision, bigint -> bigint",
          "In which of so many buckets of equal width between two bounds; 0 below, one more above.",
          "width_bucket(5.35, 0.024, 10.06, 5)", "3", errors=_INPUT),
    _math("&", _ALIKE, "Bits of both.", "12 & 10", "8"),
    _math("|", _ALIKE, "Bits of either.", "12 | 10", "14"),
    _math("#", _ALIKE, "Bits of one alone.", "12 # 10", "6"),
    _math("bit_not", _each("{0} -> {0}"), "The other bits; `~x`.", "~5", "-6"),
    _math("<<", _each("{0}, bigint -> {0}"),
          "Bits moved up; what leaves is lost. By so many modulo the width of the type.", "1 << 4", "16",
          differs="In DuckDB an overflow is an error."),
    _math(">>", _each("{0}, bigint -> {0}"),
          "Bits moved down, the sign with them. By so many modulo the width of the type.", "-16 >> 2", "-4"),
)  # fmt: skip

"""jsonb. A value is kept as its canonical text (jsonb.py), of which every part is canonical too."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_json = partial(declared, "json")
_SAMPLE = 'jsonb "{\\"a\\": [1, \\"x\\"], \\"b\\": null}"'
_SCALAR = "cannot cast jsonb value"

FUNCTIONS: Final = (
    _json("->", "jsonb, text -> jsonb; jsonb, bigint -> jsonb",
          "The value of a key, or the element at an index from 0, from the end if negative.",
          f'{_SAMPLE} -> "a"', '"[1,\\"x\\"]"', nulls="always"),
    _json("->>", "jsonb, text -> text; jsonb, bigint -> text", "As `->`, as text; of a JSON null NULL.",
          f'{_SAMPLE} -> "a" ->> -1', '"x"', nulls="always"),
    _json("#>", "jsonb, text list -> jsonb", "What a path of keys and indexes leads to.",
          f'{_SAMPLE} #> array["a", "0"]', '"1"', nulls="always"),
    _json("#>>", "jsonb, text list -> text", "As `#>`, as text.", f'{_SAMPLE} #>> array["a", "1"]', '"x"',
          nulls="always"),
    _json("jsonb_extract_path", "jsonb, text... -> jsonb", "As `#>`, the path as arguments.",
          f'jsonb_extract_path({_SAMPLE}, "a", "0")', '"1"', nulls="always"),
    _json("jsonb_extract_path_text", "jsonb, text... -> text", "As `#>>`, the path as arguments.",
          f'jsonb_extract_path_text({_SAMPLE}, "a", "1")', '"x"', nulls="always"),
    _json("jsonb_set",
          "jsonb, text list, jsonb -> jsonb; jsonb, text list, jsonb, boolean -> jsonb",
          "With what a path leads to as the third; what is not there is added, unless the fourth is false.",
          f'jsonb_set({_SAMPLE}, array["a", "0"], jsonb "2")', '"{\\"a\\":[2,\\"x\\"],\\"b\\":null}"',
          errors="cannot set path in scalar; path element is not an integer",
          differs="A NULL in the path leads nowhere; PostgreSQL has an error."),
    _json("jsonb_strip_nulls", "jsonb -> jsonb", "Without the keys whose value is null, at any depth.",
          f"jsonb_strip_nulls({_SAMPLE})", '"{\\"a\\":[1,\\"x\\"]}"'),
    _json("?", "jsonb, text -> boolean", "Whether there is a key, or a text among the elements.",
          f'{_SAMPLE} ? "b"', "true"),
    _json("jsonb_typeof", "jsonb -> text", "object, array, string, number, boolean or null.",
          f'jsonb_typeof({_SAMPLE} -> "b")', '"null"'),
    _json("jsonb_array_length", "jsonb -> bigint", "How many elements.",
          'jsonb_array_length(jsonb "[1, [2, 3]]")', "2", errors="cannot get array length of a non-array"),
    _json("to_jsonb", "any -> jsonb",
          "The value as jsonb: numbers, booleans, lists and records as such, others as texts; so NaN too.",
          "to_jsonb(array[1.5, 2])", '"[1.5,2]"'),
    _json("jsonb_build_array", "-> jsonb; any... -> jsonb", "An array of its arguments.",
          'jsonb_build_array(1, "a", null::text)', '"[1,\\"a\\",null]"', nulls="never"),
    _json("jsonb_build_object", "-> jsonb; any... -> jsonb", "An object of keys and values in turn.",
          'jsonb_build_object("b", 1, "a", true)', '"{\\"a\\":true,\\"b\\":1}"', nulls="never",
          errors="argument list must have even number of elements; key must not be null"),
)  # fmt: skip

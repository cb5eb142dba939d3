"""Lists. Positions count from 1; what lies outside is NULL."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_list = partial(declared, "lists")

FUNCTIONS: Final = (
    _list("array", "T... -> T list", "`array[a, b]`: a list of its arguments.", "array[1, 2]", "{1,2}",
          nulls="never"),
    _list("subscript", "T list, bigint -> T", "`x[i]`: the element at a position.", "array[1, 2][2]", "2",
          nulls="always"),
    _list("cardinality", "any list -> bigint", "How many elements.", "cardinality(array[1, 2])", "2"),
    _list("array_length", "any list -> bigint; any list, bigint -> bigint",
          "How many elements; NULL of none, or of a dimension other than 1.", "array_length(array[1, 2], 1)",
          "2", nulls="always"),
    _list("array_position", "T list, T -> bigint", "Where an element first is, NULL too; NULL if nowhere.",
          'array_position(array["a", "b"], "b")', "2", nulls="always"),
    _list("array_positions", "T list, T -> bigint list", "Where an element is, each time; NULL too.",
          "array_positions(array[1, 2, 1], 1)", "{1,3}", nulls="some"),
    _list("array_replace", "T list, T, T -> T list",
          "With each element equal to the second as the third; NULL too.",
          "array_replace(array[1, 2, 1], 1, 3)", "{3,2,3}", nulls="some"),
    _list("array_lower", "any list, bigint -> bigint", "1; NULL of none, or of a dimension other than 1.",
          "array_lower(array[5, 6], 1)", "1", nulls="always"),
    _list("array_upper", "any list, bigint -> bigint", "The same as `array_length`.",
          "array_upper(array[5, 6], 1)", "2", nulls="always"),
    _list("array_append", "T list, T -> T list", "With one more element; a NULL list is an empty one.",
          "array_append(array[1], 2)", "{1,2}", nulls="never"),
    _list("array_prepend", "T, T list -> T list",
          "With one more element before; a NULL list is an empty one.", "array_prepend(1, array[2])", "{1,2}",
          nulls="never"),
    _list("array_cat", "T list, T list -> T list", "One after the other; a NULL list is an empty one.",
          "array_cat(array[1], array[2, 3])", "{1,2,3}", nulls="all"),
    _list("array_remove", "T list, T -> T list", "Without the elements that are equal to a value, NULL too.",
          "array_remove(array[1, 2, 1], 1)", "{2}", nulls="some"),
    _list("array_to_string", "any list, text -> text; any list, text, text -> text",
          "The elements as texts with the second between them; NULLs are left out, or written as the third.",
          'array_to_string(array[1, null::bigint, 3], ",", "*")', '"1,*,3"', nulls="some",
          differs="PostgreSQL writes booleans as t and f here."),
    _list("string_to_array", "text, text -> text list",
          "The parts between separators; of an empty text none.", 'string_to_array("a,b", ",")', '{"a","b"}',
          differs="Of a NULL separator PostgreSQL makes single characters."),
    _list("= any", "T, T list -> boolean", "`x = ANY(list)`: whether an element is equal.",
          "2 = ANY(array[1, 2])", "true", nulls="always"),
    _list("@>", "T list, T list -> boolean; jsonb, jsonb -> boolean",
          "Whether each element of the second is in the first; of jsonb, whether the second is part of "
          "the first.", 'jsonb "{\\"a\\": [1, 2], \\"b\\": 3}" @> jsonb "{\\"a\\": [2]}"', "true"),
    _list("<@", "T list, T list -> boolean; jsonb, jsonb -> boolean", "`@>` the other way.",
          "array[1] <@ array[1, 2]", "true"),
)  # fmt: skip

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_proto.errors import LocalProtocolError
from controller_proto.script import (
    Script,
    ScriptError,
    Stanza,
    parse_script,
    render_script,
    split_line,
    split_words,
)

TEXT = """\
# A title
# of two lines


create-instance
  max_result_bytes u64 1000
# a comment in a body
  other bool true
----
ok
# not a comment: it is output

peek id=1
----

explain ref=x
----
----
one

# two
----
----

# the end
"""


def test_a_script_is_read_and_written_byte_for_byte() -> None:
    assert render_script(parse_script(TEXT)) == TEXT


def test_stanzas_have_a_directive_a_body_and_an_expected_output() -> None:
    first, second, third = parse_script(TEXT).stanzas
    assert first.directive == "create-instance"
    assert first.body == ("max_result_bytes u64 1000", "other bool true")
    assert first.expected == ("ok", "# not a comment: it is output")
    assert (second.directive, second.expected, second.line_number) == ("peek id=1", (), 13)
    assert third.expected == ("one", "", "# two")


def test_a_body_keeps_the_indentation_inside_it() -> None:
    (stanza,) = parse_script("a\n    b\n      c\n    d\n----\n").stanzas
    assert stanza.body == ("b", "  c", "d")


def test_a_rewrite_changes_the_output_of_a_stanza_and_nothing_else() -> None:
    script = parse_script(TEXT)
    rewritten = render_script(script, {13: ["1 2", "", "3"]})
    assert rewritten == TEXT.replace("peek id=1\n----\n", "peek id=1\n----\n----\n1 2\n\n3\n----\n----\n")
    again = parse_script(rewritten)
    assert again.stanzas[1].expected == ("1 2", "", "3")
    assert render_script(again, {13: []}) == TEXT


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("peek\n", 2, "expected ----"),
        ("peek", 1, "without ----"),
        ("peek\nquiet\n----\n", 2, "expected ----"),
        ("  peek\n----\n", 1, "not indented"),
        ("ok\n----\n\n----\n", 4, "without a directive"),
        ("peek\n----\n----\na\n----\nb", 3, "no second ----"),
    ],
)
def test_what_is_no_script_is_refused_by_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse_script(text)
    assert caught.value.line_number == line
    assert says in str(caught.value)


lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=8)
words = lines.filter(
    lambda line: line.strip() and line[0] not in "# \t" and line != "----" and not line[0].isspace()
)
heads = st.builds(lambda w, body: (w, *("  " + b for b in body)), words, st.lists(words, max_size=3))
outputs = (
    st.lists(lines, max_size=4)
    .map(tuple)
    .filter(lambda o: not any(a == b == "----" for a, b in itertools.pairwise((*o, "----"))))
)
between = st.lists(st.just("") | st.just("# c"), min_size=1, max_size=3).map(lambda b: ("", *b))


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Script, dict[int, tuple[str, ...]]]:
    """A script, and other outputs for some of its stanzas."""
    items: list[Stanza | tuple[str, ...]] = [("# top",)]
    for number in range(draw(st.integers(0, 4))):
        items += [Stanza(number, draw(heads), draw(outputs)), draw(between)]
    script = parse_script(render_script(Script(tuple(items))))
    changed = {s.line_number: draw(outputs) for s in script.stanzas if draw(st.booleans())}
    return script, changed


@pytest.mark.slow
@given(scripts())
def test_what_is_rendered_is_read_back_and_a_rewrite_is_stable(
    drawn: tuple[Script, dict[int, tuple[str, ...]]],
) -> None:
    script, changed = drawn
    text = render_script(script, changed)
    again = parse_script(text)
    assert render_script(again) == text
    assert [s.head for s in again.stanzas] == [s.head for s in script.stanzas]
    assert [s.expected for s in again.stanzas] == [
        changed.get(s.line_number, s.expected) for s in script.stanzas
    ]


@given(st.text(alphabet="a \n-#", max_size=40))
def test_any_text_is_a_script_that_renders_as_itself_or_an_error(text: str) -> None:
    try:
        script = parse_script(text)
    except ScriptError:
        return
    assert render_script(script) == text
    assert render_script(script, {s.line_number: s.expected for s in script.stanzas}) == text


def test_an_output_that_is_enclosed_without_need_stays_so_until_it_changes() -> None:
    text = "# c\n\na\n----\n----\nok\n----\n----\n\n# d\n"
    script = parse_script(text)
    (stanza,) = script.stanzas
    assert (stanza.expected, stanza.expected_line_number) == (("ok",), 6)
    assert render_script(script, {3: ["ok"]}) == text
    assert render_script(script, {3: ["no"]}) == "# c\n\na\n----\nno\n\n# d\n"


def test_a_line_is_split_at_blanks_but_not_inside_quotes_or_brackets() -> None:
    line = 'peek  id=7 keys=[(1, "a ] b"), (2, "\\" x")] filter=(#0 > 1 AND #1 = "y z") allow-timeout'
    assert split_line(line) == [
        "peek",
        "id=7",
        'keys=[(1, "a ] b"), (2, "\\" x")]',
        'filter=(#0 > 1 AND #1 = "y z")',
        "allow-timeout",
    ]


def test_arguments_and_flags_are_asked_for_once_and_what_is_left_is_refused() -> None:
    words = split_words('peek id=7 name="a b" loud')
    assert (words.name, words.one("id"), words.get("name"), words.get("ts")) == ("peek", "7", "a b", None)
    with pytest.raises(LocalProtocolError, match=r"peek does not take loud; there are id=, name=, ts="):
        words.expect_all_used()
    assert words.flag("loud")
    words.expect_all_used()
    with pytest.raises(LocalProtocolError, match="peek needs ts="):
        words.one("ts")


@pytest.mark.parametrize("line", ["a (b", "a b)", "a [b)", 'a "b', "a x=1 x=2"])
def test_a_line_that_cannot_be_split_is_refused(line: str) -> None:
    with pytest.raises(LocalProtocolError):
        split_words(line)

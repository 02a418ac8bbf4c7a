"""Any template ends: it is refused where it takes too many steps, whichever operation makes them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.measure.lora.calls import Dialogue, DroppedError, Message
from gpu_acceptance.measure.lora.template import Template, TemplateError

LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}"
TOO_LONG = "takes more than 262,144 steps to write a dialogue"
MANY = "{% for a in range(99999) %}"
DOUBLED = "{% set n = namespace(x='xx', y='xx') %}{% for a in range(60) %}{% set n.x = XX %}{% set n.y = YY %}{% endfor %}{{ n.x == n.y }}"
ROWS = "{% set r = range(99999) | list %}{% set s = range(99999) | list %}"
LONG = "{% set a = 'x' * 1000000 %}"


def doubled(form):
    return DOUBLED.replace("XX", form.replace("v", "n.x")).replace("YY", form.replace("v", "n.y"))


ENDLESS = {
    "loops": f"{MANY}{MANY}{{% endfor %}}{{% endfor %}}",
    "loops that choose": f"{MANY}{MANY.replace(' %}', ' if a.x == 1 %}')}{{% endfor %}}{{% endfor %}}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "text": f"{MANY}{'x' * 900_000}{{% endfor %}}",
    "output": f"{LONG}{MANY}{{{{ a }}}}{{% endfor %}}",
    "joined texts": doubled("v ~ v"),
    "added texts": doubled("v + v"),
    "lists of lists": doubled("[v, v]"),
    "dicts of dicts": doubled("{'a': v, 'b': v}"),
    "set blocks": "{% set x %}xx{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "power": "{{ 10 ** (10 ** 8) }}",
    "repeated text": "{{ 'x' * 10 ** 10 }}",
    "repeated list": "{{ ([0] * 10 ** 9) | length }}",
    "compared": f"{ROWS}{MANY}{{% if r == s %}}{{% endif %}}{{% endfor %}}",
    "looked for": f"{ROWS}{MANY}{{% if -1 in r %}}{{% endif %}}{{% endfor %}}",
    "sliced": f"{ROWS}{MANY}{{% set x = r[1:] %}}{{% endfor %}}",
    "filtered": f"{ROWS}{MANY}{{{{ r | map('string') | list | length }}}}{{% endfor %}}",
    "replaced": f"{LONG}{{{{ a.replace('x', a) }}}}",
    "put between": f"{LONG}{{{{ ([0] * 100000) | join(a) }}}}",
    "indented": "{{ ('\n' * 1000000) | indent(1000000) }}",
    "width": "{{ 'x'.ljust(10 ** 10) }}",
    "width of a filter": "{{ 'x' | center(10 ** 10) }}",
    "width in a format": "{{ '%9999999999d' % 1 }}",
    "width of a format": "{{ '%*d' % (10 ** 9, 1) }}",
    "format": "{{ '{:9999999999}'.format(1) }}",
    "filter format": "{{ '%9999999999d' | format(1) }}",
    "batches": "{{ [1] | batch(10 ** 9, 'x') | list }}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_takes_too_long_is_refused(source):
    with pytest.raises(TemplateError, match=f"^{TOO_LONG}$"):
        Template(source, {})


def test_sums_and_loops_that_choose_are_as_jinja_has_them():
    source = LOOP.replace("{{ m.content }}", "{{ m.content }}{% for i in [1, 2, 3] if i != 2 %}{{ i }}{% endfor %}")
    source = source.replace("]", "{{ [1, 2] | sum }}{{ [{'n': 4}] | sum('n') }}]", 1).replace("|{% endfor %}", "|{% endfor %}")
    dialogue = Dialogue((), (Message("user", "Hi"), Message("assistant", "Hello")), 1)
    assert Template(source, {}).written(dialogue)[0].text == "[user34]Hi13|[assistant34]Hello13|"


def test_a_dialogue_of_too_many_answers_is_dropped_and_the_next_one_is_written():
    """Each answer costs the text before it once more."""
    template, turn = Template(LOOP, {}), (Message("user", "Hi"), Message("assistant", "Hello"))
    assert len(template.written(Dialogue((), turn * 400, 1))[0].spans) == 400
    with pytest.raises(DroppedError, match=r"^the chat template takes more than 4,194,304 steps to write a dialogue$"):
        template.written(Dialogue((), turn * 1600, 1))
    assert len(template.written(Dialogue((), turn, 2))[0].spans) == 1


# --- a small grammar -------------------------------------------------------------------------------------------------------------

ATOMS = st.sampled_from(["a", "b", "'xy'", "3", "99999", "messages", "range(99999)", "[1, 2]", "n.x", "none", "messages[0].content"])
OPERATORS = ("+", "*", "**", "~", "==", "in", "%", "<", "and")
FILTERS = ("list", "length", "string", "tojson", "join(a)", "indent(9999)", "batch(3)", "map('string')", "upper", "sort", "trim", "sum")


def larger(inner):
    return st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, st.sampled_from(FILTERS)).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, inner).map(lambda parts: f"[{parts[0]}, {parts[1]}]"),
        inner.map(lambda one: f"f({one})"),
        inner.map(lambda one: f"{one}[1:]"),
        st.tuples(inner, inner).map(lambda parts: f"('' ~ {parts[0]}).replace('x', '' ~ {parts[1]})"),
    )


EXPRESSIONS = st.recursive(ATOMS, larger, max_leaves=6)


def blocks(inner):
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(EXPRESSIONS, inner).map(lambda parts: f"{{% for a in {parts[0]} %}}{parts[1]}{{% endfor %}}"),
        st.tuples(EXPRESSIONS, EXPRESSIONS, inner).map(lambda parts: f"{{% for b in {parts[0]} if {parts[1]} %}}{parts[2]}{{% endfor %}}"),
        st.tuples(EXPRESSIONS, inner).map(lambda parts: f"{{% if {parts[0]} %}}{parts[1]}{{% endif %}}"),
        st.tuples(inner).map(lambda parts: f"{{% set b %}}{parts[0]}{{% endset %}}"),
    )


BLOCKS = st.recursive(
    st.one_of(EXPRESSIONS.map(lambda one: f"{{{{ {one} }}}}"), EXPRESSIONS.map(lambda one: f"{{% set n.x = {one} %}}"), st.just("text")),
    blocks,
    max_leaves=6,
)


@settings(deadline=None)
@given(BLOCKS)
def test_any_template_ends(block):
    with pytest.raises(TemplateError):  # it writes no dialogue
        Template("{% set n = namespace(x='x') %}{% macro f(b) %}{{ b }}{{ b }}{% endmacro %}" + block, {})

"""The lists of twins apply to the library as it is, and the page of evidence says what the table says."""

from __future__ import annotations

from tests.docs.pages import text
from tests.docs.test_site import GUARANTEES
from tests.sabotage.table import PAGE, page, read_table
from tests.sabotage.twins import CHECKOUT, read_twins


def test_each_twin_changes_exactly_one_place_of_the_library() -> None:
    for twin in read_twins():
        assert twin.rewrite() != (CHECKOUT / twin.module).read_text("utf-8"), twin.name


def test_each_twin_is_noticed_by_tests_that_exist() -> None:
    table = read_table()
    assert sorted(table) == sorted(twin.name for twin in read_twins()), "python -m tests.sabotage --learn NAME"
    for name, catch in table.items():
        for test in catch.tests:
            path, function = test.split("[")[0].split("::", 1)
            assert (CHECKOUT / path).exists(), (name, test)
            if "Conformance" not in function and not function.startswith("Test"):  # those of a suite stand in the suite
                assert f"def {function.rpartition('::')[2]}(" in (CHECKOUT / path).read_text("utf-8"), (name, test)


def test_each_page_that_promises_something_has_a_twin() -> None:
    promised = {f"docs/{twin.page}" for twin in read_twins()}
    assert [page for page in GUARANTEES if page not in promised] == []


def test_the_page_of_evidence_is_what_the_table_says() -> None:
    assert text(str(PAGE.relative_to(CHECKOUT))) == page(read_twins(), read_table()), "make evidence"

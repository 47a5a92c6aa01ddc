"""The most recently used values are kept, for any order of uses."""

from hypothesis import given
from hypothesis import strategies as st

from fuseconv.runtime.recent import Recent


@given(st.integers(1, 4), st.lists(st.integers(0, 6)))
def test_the_last_keys_used_are_kept(limit: int, uses: list[int]) -> None:
    recent: Recent[int, str] = Recent(limit)
    for index, key in enumerate(uses):
        kept = list(dict.fromkeys(reversed(uses[:index])))[:limit]
        assert recent.items() == [(used, str(used)) for used in reversed(kept)]
        if key in kept:
            assert recent.get(key) == str(key)
        else:
            assert recent.get(key) is None
            assert recent.put(key, str(key)) == (str(kept[-1]) if len(kept) == limit else None)
        assert len(recent) <= limit

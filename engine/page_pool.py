"""Which KV pages are free, and how many holders each used page has. Knows page numbers, not tensors."""

NULL_PAGE = 0
"""Page 0 is never allocated: padding reads it and throw-away writes go to it."""


class PagePool:
    """Reference-counted pages 1 .. total. Raises AssertionError on misuse, since misuse is our own mistake."""

    def __init__(self, total: int) -> None:
        assert total >= 1, "a pool needs at least one page"
        self.total = total
        self._holders = [0] * (total + 1)
        # Taken from the end, so that a fresh pool hands out ascending runs, which gather faster.
        self._free = list(range(total, NULL_PAGE, -1))

    @property
    def free(self) -> int:
        """Number of pages nobody holds."""
        return len(self._free)

    def holders(self, page: int) -> int:
        """How many nodes and requests hold `page`."""
        return self._holders[page]

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, each with one holder. The caller has checked `free`."""
        assert 0 <= count <= len(self._free), "allocate was called without enough free pages"
        if count == 0:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        for page in pages:
            self._holders[page] = 1
        return pages

    def retain(self, page: int) -> None:
        """Add a holder to a page that is in use."""
        assert self._holders[page] > 0, f"page {page} is free and cannot be retained"
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """Drop one holder; the page is free when the last one is gone."""
        assert self._holders[page] > 0, f"page {page} is already free"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self._free.append(page)

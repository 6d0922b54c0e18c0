"""Mutants of drlib/tools/crawl.py (see `tests.mutants`)."""

from tests.mutants import Mutant

CRAWL = "drlib/tools/crawl.py"
TESTS = "tests/test_tools_crawl.py"
LIVE = "tests/test_tools_live_site.py"
WORLD = f"{TESTS}::test_site_becomes_a_world_and_nothing_else_is_requested"

MUTANTS = [
    Mutant(
        "crawl: robots.txt is ignored",
        CRAWL,
        "        return within and self._robots.can_fetch(AGENT, url)\n",
        "        return within\n",
        (WORLD,),
        "a disallowed page is requested",
    ),
    Mutant(
        "crawl: the whole host is the site",
        CRAWL,
        '        self._within = self.start[: self.start.rindex("/") + 1]\n',
        '        self._within = urljoin(self.start, "/")\n',
        (WORLD,),
        "a page outside the start folder is requested",
    ),
    Mutant(
        "crawl: the crawl delay is ignored",
        CRAWL,
        "        self.delay_s = max(self.delay_s, float(self._robots.crawl_delay(AGENT) or 0))\n",
        "        self.delay_s = self.delay_s\n",
        (f"{TESTS}::test_crawl_delay_of_the_site_is_obeyed",),
        "two requests within a second",
    ),
    Mutant(
        "crawl: a second run ignores the first",
        CRAWL,
        '                self._rows[row["url"]] = row\n\n',
        "                continue\n\n",
        (f"{TESTS}::test_crawl_resumes_and_writes_only_new_files",),
        "pages are requested twice",
    ),
    Mutant(
        "live: stored pages are ignored",
        "drlib/tools/live_site.py",
        "        if not _holds_pages(place):\n            raise\n",
        "        raise\n",
        (f"{LIVE}::test_unreachable_site_uses_the_kept_pages",),
        "questions of an unavailable site are lost",
    ),
    Mutant(
        "live: all sites in one folder",
        "drlib/tools/live_site.py",
        "hashlib.sha256(address.encode())",
        "hashlib.sha256(host.encode())",
        (f"{LIVE}::test_each_site_has_its_own_folder",),
        "the second part of a site could not be read",
    ),
]

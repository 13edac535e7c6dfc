"""The pages as a site: every link and heading is there, every page is in the navigation, and the search knows them."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_site_is_built_from_the_same_pages(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "keeps the entropy" in (tmp_path / "index.html").read_text()
    found = {
        entry["location"].split("#")[0]
        for entry in json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    }
    assert found >= {f"{page.stem}/" for page in (ROOT / "docs").glob("*.md")}

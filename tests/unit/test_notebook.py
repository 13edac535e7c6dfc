"""The notebook runs from its first cell to its last, and shows what it says."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "entropy_in_a_loop.ipynb"


def test_the_notebook_runs_and_stare_keeps_the_entropy(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    check = "print({name: [sum(v[-100:]) / 100 for v in values] for name, values in runs.items()})"
    notebook.cells.append(nbformat.v4.new_code_cell(check))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = notebook.cells[-1].outputs
    (plain, plain_reward), (stare, stare_reward), (own, own_reward) = eval(output.text).values()
    assert plain < 0.15 < 0.2 < stare
    assert 0.2 < own
    assert min(plain_reward, stare_reward, own_reward) > 0.9

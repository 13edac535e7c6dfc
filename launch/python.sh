# Which Python .venv is made of; sourced.

fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

# first_python: prints PYTHON, or else the first Python on the PATH that fits; nothing if there is none.
first_python() {
    local candidate
    [[ -z ${PYTHON:-} ]] || { echo "$PYTHON"; return; }
    for candidate in python3.11 python3.12 python3.10 python3; do
        ! fits "$candidate" || { echo "$candidate"; return; }
    done
}

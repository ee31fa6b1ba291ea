#!/bin/sh
# Print the first Python 3.11 to 3.13 that can make a virtual environment. PYTHON=... names one.
if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11 python
fi
probe='
import sys
try:
    import ensurepip, venv
    tools = ""
except ImportError:
    tools = "bare"
print("%d.%d%s" % (sys.version_info[0], sys.version_info[1], tools))
'
other=
bare=
for name in "$@"; do
    version=$("$name" -c "$probe" 2>/dev/null) || continue
    case $version in
        3.11|3.12|3.13) echo "$name"; exit 0 ;;
        3.11bare|3.12bare|3.13bare) bare=$name; bare_version=${version%bare} ;;
        *) other="$other $name is ${version%bare}," ;;
    esac
done
if [ -n "$bare" ]; then
    echo "kvcourse: $bare has no venv module: install it (Debian, Ubuntu: apt install python$bare_version-venv)" >&2
elif [ -n "$other" ]; then
    echo "kvcourse: needs Python 3.11, 3.12 or 3.13, but${other%,}: install one, or name it with PYTHON=/path/to/python" >&2
elif [ -n "${PYTHON:-}" ]; then
    echo "kvcourse: PYTHON=$PYTHON does not run: name a Python 3.11, 3.12 or 3.13" >&2
else
    echo "kvcourse: no Python found: install Python 3.11, 3.12 or 3.13, or name it with PYTHON=/path/to/python" >&2
fi
exit 2

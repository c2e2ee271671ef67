"""The `format` keyword: for each known format, a pattern whose strings all have that format."""

_LABEL = r"[A-Za-z0-9]{1,30}(?:-[A-Za-z0-9]{1,30})?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,2}}\.[A-Za-z]{{2,12}}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_YEAR = r"[1-9][0-9]{3}"
_LEAP_YEAR = r"(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_PATH_CHARACTER = r"[A-Za-z0-9._~!$&'()*+,;=:@-]"
_QUERY = rf"(?:\?(?:{_PATH_CHARACTER}|[/?]|%[0-9A-F]{{2}})*)?(?:#(?:{_PATH_CHARACTER}|[/?]|%[0-9A-F]{{2}})*)?"
_PATH = rf"(?:/(?:{_PATH_CHARACTER}|%[0-9A-F]{{2}})*)*"
_AUTHORITY = rf"(?:localhost|{_LABEL}|{_HOST}|{_BYTE}(?:\.{_BYTE}){{3}})(?::[0-9]{{1,4}})?"
_URI = rf"(?:[a-z][a-z0-9+.-]*://{_AUTHORITY}{_PATH}{_QUERY}|[a-z][a-z0-9+.-]*:{_PATH_CHARACTER}+{_PATH}{_QUERY})"
# A relative path begins with a segment that has no colon, or it would be read as a scheme.
_FIRST_SEGMENT = r"[A-Za-z0-9._~!$&'()*+,;=@-]+"
_REFERENCE = rf"(?:{_URI}|(?:/(?:{_PATH_CHARACTER}+{_PATH})?|{_FIRST_SEGMENT}{_PATH})?{_QUERY})"
_MAIL_NAME = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30}"
_EMAIL = rf"{_MAIL_NAME}(?:\.{_MAIL_NAME})?@{_HOST}"
_DURATION = r"P(?:[0-9]{1,6}[DW]|(?:[0-9]{1,4}Y)(?:[0-9]{1,2}M)?|T[0-9]{1,6}[HMS])"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^{_DURATION}$",
    "email": f"^{_EMAIL}$",
    "idn-email": f"^{_EMAIL}$",
    "hostname": f"^{_LABEL}(?:\\.{_LABEL}){{0,3}}$",
    "idn-hostname": f"^{_LABEL}(?:\\.{_LABEL}){{0,3}}$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
    "ipv6": r"^[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7}$",
    "uuid": r"^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
    "uri": f"^{_URI}$",
    "iri": f"^{_URI}$",
    "uri-reference": f"^{_REFERENCE}$",
    "iri-reference": f"^{_REFERENCE}$",
    "json-pointer": f"^{_POINTER}$",
}
"""Formats not listed here (`regex`, `uri-template` and unknown ones) are annotations, as Draft 2020-12 has it."""

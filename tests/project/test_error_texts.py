"""The list of error texts has each text that a user may meet, and the module that says it."""

from tests.project.error_texts import VALUE, ErrorText, error_texts, texts_of

WORDS_OF_MANY = 6
MODULE = """
WHERE = "look there"
MESSAGES = {Status.THROTTLED: "too many of {name}; try again", Status.OK: "all is well"}


def refuse(name, reason):
    raise NotFound(f"no {name} here: {WHERE}")


def answer(send, name):
    send(Status.UNKNOWN, "the handler failed", "")
    text = f"{name} is full: free some"
    if text:
        raise StoreUnhealthy(text)
    return OSError(errno.EIO, f"{name} cannot be read")


def remedy(name) -> str:
    return f"`mend {name}` shows what is lost" if name else "mend"


def pass_on(error):
    raise Corrupt(f"{error}") from error
"""


def test_texts_are_found_wherever_a_class_or_a_status_stands_beside_them() -> None:
    """A text that the list leaves out sends its reader through every module.

    It may be raised, returned, sent with a status, kept in a table of statuses, or put together of parts. A
    text that another module made has no words of its own.
    """
    assert list(texts_of("x.py", MODULE)) == [
        ErrorText("x.py", "Throttled", "too many of …; try again"),
        ErrorText("x.py", "NotFound", "no … here: look there"),
        ErrorText("x.py", "Unknown", "the handler failed"),
        ErrorText("x.py", "StoreUnhealthy", "… is full: free some"),
        ErrorText("x.py", "OSError", "… cannot be read"),
        ErrorText("x.py", "a part", "`mend …` shows what is lost"),
    ]


def test_a_text_is_said_by_one_module() -> None:
    """A fault that two modules judge is judged in two ways one day, and nobody knows where its text is from.

    A text of few words is left out: the setting or the stream that it begins with says whose it is.
    """
    modules: dict[str, dict[str, None]] = {}
    for module, _, text in error_texts():
        if len(text.replace(VALUE, "").split()) > WORDS_OF_MANY:
            modules.setdefault(text, {})[module] = None

    assert {text: list(where) for text, where in modules.items() if len(where) > 1} == {}


def test_the_product_says_hundreds_of_texts() -> None:
    """If the search finds nothing, the page is empty, and agrees with the code."""
    assert len(error_texts()) > 400

"""A sink that is slow, full or broken is nobody's problem."""

import io
import logging
import threading

from agentflow.observability.log_sink import MAX_RECORD, Sink


class Blocked(io.StringIO):
    """A pipe that nobody reads until it is opened."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Event()
        self.open = threading.Event()

    def write(self, text):
        self.begun.set()
        self.open.wait()
        return super().write(text)


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def logger_to(sink):
    logger = logging.Logger("mine")
    logger.addHandler(sink)
    return logger


def test_records_are_written_in_order_a_line_each():
    stream = io.StringIO()
    sink = Sink(stream, logging.Formatter("%(levelname)s %(message)s"))
    logger = logger_to(sink)
    logger.info("one %s", 1)
    logger.warning("two")
    sink.close()
    sink.close()
    assert stream.getvalue() == "INFO one 1\nWARNING two\n"


def test_the_text_is_that_of_the_moment_though_it_is_written_later():
    stream, said = Blocked(), ["before"]
    sink = Sink(stream, logging.Formatter())
    logger_to(sink).info("%s", said)
    said.append("after")
    stream.open.set()
    sink.close()
    assert stream.getvalue() == "['before']\n"


def test_over_its_bound_lines_are_dropped_and_a_line_says_how_many():
    stream = Blocked()
    sink = Sink(stream, logging.Formatter(), capacity=2)
    logger = logger_to(sink)
    logger.info("writing")
    stream.begun.wait()
    for number in range(5):
        logger.info("%d", number)
    assert sink.dropped == 3
    stream.open.set()
    while not sink._records.empty():
        pass
    sink.close()
    assert stream.getvalue().splitlines() == ["writing", "3 lines were dropped: the log was not read", "0", "1"]


def test_a_stream_that_fails_and_a_record_that_is_wrong_raise_nothing(capsys):
    sink = Sink(Broken(), logging.Formatter())
    logger = logger_to(sink)
    logger.info("lost")
    logger.info("%d", "wrong")
    sink.close()
    assert sink.failed == 2
    assert capsys.readouterr().err == ""


def test_what_waits_is_bounded_in_size_too():
    stream = io.StringIO()
    sink = Sink(stream, logging.Formatter())
    logger_to(sink).info("%s", "x" * 10 * MAX_RECORD)
    sink.close()
    assert len(stream.getvalue()) == MAX_RECORD + 1

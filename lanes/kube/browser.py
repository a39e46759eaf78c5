"""Drives headless Chromium over WebDriver, and prints what it found on the page: one JSON object a line.

    browser.py PART URL AXE TOKENS SCREENSHOTS

PART: `views` all views, `failing` one row for each failing pod, `sign-in` with tokens of two accounts, `away` without an API server. AXE: path of axe.min.js. TOKENS: of
an account that may list pods, and of one that may not. SCREENSHOTS: directory of PNG files, or an empty string.

Source: W3C WebDriver; ChromeDriver, "goog/cdp/execute"; axe-core API.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PORT = 9515
ENTER, ESCAPE, DOWN, UP, END = "\ue007", "\ue00c", "\ue015", "\ue013", "\ue010"
WIDE, PHONE = (1280, 800), (360, 740)


class Browser:
    def __init__(self):
        self.home = tempfile.mkdtemp(dir="/tmp")
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={PORT}", "--log-level=SEVERE"], env={**os.environ, "HOME": self.home},
            stdout=subprocess.DEVNULL)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--user-data-dir={self.home}/profile", "--no-first-run", "--disable-background-networking"]
        capabilities = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments},
                        "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = ""
        for _ in range(300):
            try:
                answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
                break
            except (ConnectionError, urllib.error.URLError):
                time.sleep(0.1)
        else:
            raise SystemExit("chromedriver does not answer")
        self.session = "/session/" + answer["sessionId"]
        self.call("POST", "/timeouts", {"script": 60000, "pageLoad": 60000})

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{getattr(self, 'session', '')}{path}", data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.read().decode()[:2000]}") from error

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": arguments})

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def keys(self, *keys):
        actions = [step for key in keys for step in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def show(self, size, scheme):
        self.devtools("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=size == PHONE)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                              {"name": "prefers-reduced-motion", "value": "reduce"}])

    def wait(self, script, seconds=30):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = self.run("return " + script)
            if value:
                return value
            time.sleep(0.1)
        return None

    def errors(self):
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, name):
        if SCREENSHOTS:
            with open(os.path.join(SCREENSHOTS, name + ".png"), "wb") as file:
                file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def violations(self):
        with open(AXE, encoding="utf-8") as file:
            source = file.read()
        self.devtools("Runtime.evaluate", expression=source + ";0")
        options = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
        expression = f"axe.run(document, {json.dumps(options)}).then(result => JSON.stringify(result.violations.map(" \
                     "one => [one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 200) + ' ' + node.failureSummary)])))"
        result = self.devtools("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return json.loads(result["result"]["value"])

    def end(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(20)


def expect(name, ok, detail=None):
    print(json.dumps({"name": name, "ok": bool(ok), "detail": detail}), flush=True)


def equal(name, found, expected):
    expect(name, found == expected, found)


WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TOTAL = "document.querySelector('.total')?.textContent"
FOCUS = "document.activeElement?.textContent"
POLICIES = "[...document.querySelectorAll('table[aria-label=\"Policies\"] tbody tr')]"


def look(browser, name, path, ready):
    """Looks at a view in both schemes and both widths."""
    for size, width in ((WIDE, "wide"), (PHONE, "phone")):
        for scheme in ("light", "dark"):
            browser.show(size, scheme)
            browser.open(URL + path)
            expect(f"{name} {width} {scheme}: shown", browser.wait(ready), browser.run("return document.body.innerText")[:600])
            time.sleep(0.4)
            equal(f"{name} {width} {scheme}: no horizontal scroll", browser.run("return " + WIDER), 0)
            equal(f"{name} {width} {scheme}: accessible", browser.violations(), [])
            browser.screenshot(f"{name}-{width}-{scheme}")


def views(browser):
    browser.show(WIDE, "light")
    began = time.monotonic()
    browser.open(URL + "/")
    expect("all pods", browser.wait(f"{TOTAL} === '2,002 pods'"), browser.run("return " + TOTAL))
    expect("all pods soon", time.monotonic() - began < 20, time.monotonic() - began)
    rendered = browser.run("return document.querySelectorAll('tbody tr').length")
    expect("only visible rows are rendered", 10 < rendered < 100, rendered)
    equal("number of rows for screen readers", browser.run("return document.querySelector('table').getAttribute('aria-rowcount')"), "2003")
    # Keyboard: filter, rows, a pod.
    browser.keys("/")
    equal("the key / goes to the filter", browser.run("return document.activeElement.id"), "filter")
    browser.keys(*"node:worker-07 net-07")
    expect("filter", browser.wait(f"{TOTAL} !== '2,002 pods' && !{TOTAL}.startsWith('0 ')"), browser.run("return " + TOTAL))
    expect("the filter is in the address", "q=node" in browser.run("return location.search"))
    browser.keys(DOWN)
    first = browser.run("return " + FOCUS)
    expect("the first row has the focus", "/pod-" in first, first)
    browser.keys(DOWN)
    expect("the next row has the focus", "/pod-" in browser.run("return " + FOCUS) and browser.run("return " + FOCUS) != first)
    browser.keys(UP)
    equal("the row before has the focus", browser.run("return " + FOCUS), first)
    browser.keys(ENTER)
    expect("a pod is shown", browser.wait("document.querySelector('.detail h1')?.textContent.includes('pod-')"))
    expect("the path is a deep link", browser.run("return location.pathname").startswith("/pod/"))
    browser.run("history.back()")
    expect("back at the list with its filter", browser.wait(f"document.getElementById('filter')?.value.startsWith('node') && {TOTAL} !== '2,002 pods'"))
    browser.run("document.getElementById('filter').focus()")
    browser.keys(ESCAPE)
    expect("escape empties the filter", browser.wait(f"{TOTAL} === '2,002 pods'"))
    browser.keys(DOWN)
    browser.keys(END)
    expect("end goes to the last row", browser.wait("document.activeElement.closest('tr')?.getAttribute('aria-rowindex') === '2003'"), browser.run("return " + FOCUS))
    browser.run("[...document.querySelectorAll('th button')].find(button => button.textContent.startsWith('Node')).click()")
    equal("sorted by node", browser.run("return document.querySelector('th[aria-sort]').textContent"), "Node")
    # A toggle of a state, with a screen of few rows.
    browser.run("[...document.querySelectorAll('.toggle')].find(button => button.textContent.startsWith('Missing')).click()")
    expect("pods without a network", browser.wait(f"{TOTAL} === '1 of 2,002 pods'"), browser.run("return " + TOTAL))
    equal("console after the list", browser.errors(), [])

    look(browser, "pods", "/", f"{TOTAL} === '2,002 pods'")
    look(browser, "map", "/map", "document.querySelectorAll('.cell').length > 20")
    look(browser, "networks", "/networks", "document.querySelectorAll('tbody tr').length > 10")
    look(browser, "network", "/network/blue/net-00", "document.querySelector('.fill') && document.querySelector('pre')")
    look(browser, "pod", "/pod/blue/pod-0000", "document.querySelector('.timeline') && document.querySelector('.problems')")
    look(browser, "broken", "/pod/blue/broken", "document.querySelector('.problems')")
    look(browser, "nodes", "/nodes", "document.querySelectorAll('tbody tr').length > 10")
    look(browser, "node", "/node/worker-02", "document.querySelector('.facts') && document.querySelector('.scroll')")
    look(browser, "addresses", "/addresses", "document.querySelectorAll('.fill').length > 5")
    look(browser, "failures", "/failures", "document.querySelectorAll('tbody tr').length >= 3")
    look(browser, "absent", "/pod/blue/none", "document.querySelector('.empty .title')?.textContent.includes('is not shown')")
    equal("console after all views", browser.errors(), [])

    # A network shows its policies, also those of other namespaces, and no policy of another network.
    browser.show(WIDE, "light")
    browser.open(URL + "/network/blue/net-00")
    expect("policies of a network", browser.wait(f"{POLICIES}.length === 2"), browser.run("return document.querySelector('main').innerText")[-800:])
    shown = browser.run(f"return {POLICIES}.map(row => [...row.cells].map(cell => cell.textContent))")
    equal("policies with their rules", [[row[0], row[2], row[3]] for row in shown], [["blue/deny-all", "0", "0"], ["red/hostile", "2", "1"]])
    expect("hostile selector of a policy is text", len(shown) == 2 and "<img src=x" in shown[1][1], shown)
    equal("policies are no elements", browser.run("return document.querySelectorAll('main img, main script').length"), 0)
    equal("policies run nothing", browser.run("return typeof window.broken"), "undefined")
    browser.open(URL + "/network/blue/net-02")
    expect("a network without policies", browser.wait("document.querySelector('pre')") and browser.run(f"return {POLICIES}.length") == 0)

    # Hostile names are text.
    browser.show(WIDE, "light")
    browser.open(URL + "/pod/blue/hostile")
    expect("hostile names are shown", browser.wait("document.querySelector('main').innerText.includes('<img src=x')"))
    equal("hostile names are no elements", browser.run("return document.querySelectorAll('main img, main script').length"), 0)
    equal("hostile names run nothing", browser.run("return typeof window.broken"), "undefined")
    plain = browser.run("return [...document.body.innerText].every(c => !'\\u001b\\u202e'.includes(c))")
    expect("hostile names turn no text", plain)
    equal("HTML from a string is refused", browser.run("try { document.body.innerHTML = '<b>x</b>'; return 'accepted' } catch { return 'refused' }"), "refused")


def failing(browser):
    """23 pods fail, each with several Events and repetitions: 23 rows, whose reasons are not cut off."""
    browser.show(WIDE, "light")
    browser.open(URL + "/failures")
    rows = "[...document.querySelectorAll('.failures tbody tr')]"
    expect("a row for each failing pod, and one that recovered", browser.wait(f"{rows}.length === 24"), browser.run(f"return {rows}.length"))
    equal("badge of the failing pods", browser.run("return document.getElementById('failures').textContent"), "23")
    states = browser.run(f"return {rows}.map(row => row.cells[0].textContent)")
    equal("failing pods first", states, ["Failing"] * 23 + ["Attached"])
    cells = browser.run(f"return [...{rows}[0].cells].map(cell => cell.textContent)")
    expect("network, reason and times", cells[2:4] == ["red/gone"] + ["AttachFailed"] and cells[5] == "45", cells)
    expect("reason and hint in the row", "set \"master\" to an interface" in cells[4] and "weft history" in cells[4], cells)
    cut = browser.run(f"return {rows}.filter(row => row.cells[4].scrollWidth > row.cells[4].clientWidth || row.scrollHeight > row.clientHeight + 1).length")
    equal("no reason is cut off", cut, 0)
    browser.open(URL + "/")
    expect("state of the pods", browser.wait("[...document.querySelectorAll('.toggle')].find(button => button.textContent.startsWith('Failing'))?.textContent === 'Failing 23'"), browser.run("return document.body.innerText")[:600])
    look(browser, "failing", "/failures", f"{rows}.length === 24")
    equal("console", browser.errors(), [])


def sign_in(browser):
    all_, none = TOKENS.split(" ")
    browser.show(WIDE, "light")
    browser.open(URL + "/pod/blue/pod-0000")
    expect("a token is needed", browser.wait("document.getElementById('token')"))
    for scheme in ("light", "dark"):
        browser.show(PHONE, scheme)
        equal(f"sign-in {scheme}: no horizontal scroll", browser.run("return " + WIDER), 0)
        equal(f"sign-in {scheme}: accessible", browser.violations(), [])
        browser.screenshot(f"sign-in-phone-{scheme}")
    browser.show(WIDE, "light")
    browser.run("document.getElementById('token').focus()")
    browser.keys(*"wrong", ENTER)
    expect("a wrong token is refused in words", browser.wait("document.querySelector('.problem')?.textContent.includes('does not accept')"), browser.run("return document.body.innerText"))
    insert = "document.getElementById('token').value = arguments[0]; document.querySelector('form').requestSubmit()"
    browser.run(insert, none)
    expect("an account without rights reads what it lacks", browser.wait("!document.getElementById('notice').hidden && document.getElementById('notice').textContent.includes('list on pods')"), browser.run("return document.body.innerText"))
    equal("no rights: accessible", browser.violations(), [])
    browser.screenshot("no-rights-wide-light")
    browser.open(URL + "/")
    expect("the token is kept for the tab", browser.wait("document.querySelector('.empty .title')?.textContent.includes('may not list pods')"), browser.run("return document.body.innerText"))
    browser.run("document.getElementById('leave').click()")
    expect("signed out", browser.wait("document.getElementById('token')"))
    browser.run(insert, all_)
    expect("an account with rights sees pods", browser.wait(f"{TOTAL} === '20 pods'"), browser.run("return document.body.innerText"))
    errors = [text for text in browser.errors() if "401" not in text]
    equal("console", errors, [])


def away(browser):
    browser.show(WIDE, "light")
    browser.open(URL + "/")
    expect("the API server is away", browser.wait("document.getElementById('notice').textContent.includes('API server does not answer')"), browser.run("return document.body.innerText"))
    equal("away: the last known pods are shown", browser.run("return " + TOTAL), "20 pods")
    expect("away: the age of the data", browser.run("return /\\d+ s old/.test(document.getElementById('live').textContent)"))
    equal("away: accessible", browser.violations(), [])
    browser.screenshot("away-wide-light")


PART, URL, AXE, TOKENS, SCREENSHOTS = sys.argv[1:6]
opened = Browser()
try:
    {"views": views, "failing": failing, "sign-in": sign_in, "away": away}[PART](opened)
finally:
    opened.end()

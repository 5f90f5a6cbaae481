"""A person at the browser: follows links, fills in forms and presses buttons that are on the page.

Mouse clicks; Keyboard reaches every control with Tab and uses it with keys only. Both count their
actions, and both fail for a control that is not visible.
"""

TABS_MAX = 200
IS_FOCUSED = "element => element === document.activeElement"
SAME_RADIOS = "element => document.activeElement.name === element.name " \
              "&& document.activeElement.type === 'radio'"


class Mouse:
    """page: of Playwright. actions: clicks and fields filled so far."""

    def __init__(self, page):
        self.page = page
        self.actions = 0

    def link(self, name):
        """Follow the first link with this name."""
        self._use(self.page.get_by_role("link", name=name, exact=True).first)

    def button(self, name):
        self._use(self.page.get_by_role("button", name=name, exact=True).first)

    def open(self, name):
        """Open a part of the page that is closed."""
        self._use(self.page.locator("summary", has_text=name))

    def check(self, label):
        """Choose a check box or a radio button."""
        self.actions += 1
        self.page.get_by_label(label, exact=True).check()

    def fill(self, label, text):
        self.actions += 1
        self.page.get_by_label(label, exact=True).first.fill(text)

    def select(self, label, option):
        self.actions += 1
        self.page.get_by_label(label, exact=True).select_option(label=option)

    def _use(self, target):
        self.actions += 1
        target.click()


class Keyboard(Mouse):
    """Never uses the mouse."""

    def check(self, label):
        self.actions += 1
        target = self.page.get_by_label(label, exact=True)
        if target.get_attribute("type") == "checkbox":
            self._focus(target)
            self.page.keyboard.press("Space")
            return
        self._tab_until(target, SAME_RADIOS)
        for _ in range(TABS_MAX):
            if target.evaluate(IS_FOCUSED):
                break
            self.page.keyboard.press("ArrowDown")
        self.page.keyboard.press("Space")
        assert target.is_checked()

    def fill(self, label, text):
        self.actions += 1
        self._focus(self.page.get_by_label(label, exact=True).first)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def select(self, label, option):
        self.actions += 1
        target = self.page.get_by_label(label, exact=True)
        self._focus(target)
        self.page.keyboard.type(option)
        assert target.evaluate("element => element.selectedOptions[0].text") == option

    def _use(self, target):
        self.actions += 1
        self._focus(target)
        outline = self.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", "the focus is not visible"
        self.page.keyboard.press("Enter")
        self.page.wait_for_load_state()

    def _focus(self, target):
        target.wait_for(state="visible")
        self._tab_until(target, IS_FOCUSED)

    def _tab_until(self, target, condition):
        handle = target.element_handle()
        for _ in range(TABS_MAX):
            if handle.evaluate(condition):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {target}")

"""Accessible names and keyboard access that ipywidgets lacks: sliders, their readouts, images and accordions."""

import html

import ipywidgets

# ipywidgets gives a slider no accessible name, an image no alt text and the header of an accordion no tab stop, and has
# no option for any of them. The load handler of a <style> element is the only script that its HTML widget runs; it does
# so in JupyterLab, Notebook and Voila alike. One observer serves all panels of a page.
SCRIPT = """
if (!window.labkitNames) {
  const nameAll = () => {
    for (const handle of document.querySelectorAll('.noUi-handle:not([aria-label])')) {
      const slider = handle.closest('.widget-slider');
      const words = slider && slider.querySelector('.widget-label').textContent;
      if (!words || !slider.closest('.labkit-panel')) continue;
      handle.setAttribute('aria-label', words);
      const number = slider.querySelector('.widget-readout');
      if (number) number.setAttribute('role', 'textbox'), number.setAttribute('aria-label', words + ', as a number');
    }
    for (const picture of document.querySelectorAll('.labkit-panel img.widget-image:not([alt])')) {
      const name = () => picture.alt = picture.naturalWidth ? 'Training curves, described in the status line.' : '';
      picture.addEventListener('load', name);
      name();
    }
    for (const head of document.querySelectorAll('.labkit-panel .jupyter-widget-Collapse-header:not([tabindex])')) {
      head.tabIndex = 0;
      head.setAttribute('role', 'button');
      head.addEventListener('keydown', event => {
        if (event.key === 'Enter' || event.key === ' ') event.preventDefault(), head.click();
      });
    }
  };
  window.labkitNames = new MutationObserver(nameAll);
  window.labkitNames.observe(document.body, {childList: true, subtree: true});
  nameAll();
}
"""


def accessible() -> ipywidgets.HTML:
    """An invisible widget that adds the names and keys; one on a page is enough."""
    return ipywidgets.HTML(f'<style onload="{html.escape(SCRIPT)}"></style>', layout={"display": "none"})

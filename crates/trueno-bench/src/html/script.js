'use strict';
(() => {
  const root = document.documentElement;
  const button = document.getElementById('theme');
  const dark = () => root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  const name = () => { button.textContent = dark() ? 'Light' : 'Dark'; };
  button.hidden = false;
  button.addEventListener('click', () => { root.dataset.theme = dark() ? 'light' : 'dark'; name(); });
  name();
  // The marks' own titles say the same without this; it only says it sooner.
  const tip = document.getElementById('tip');
  const hide = () => tip.classList.remove('on');
  for (const mark of document.querySelectorAll('svg.plot [data-tip]')) {
    const title = mark.querySelector('title');
    if (title) title.remove();
    mark.setAttribute('aria-label', mark.dataset.tip);
    mark.addEventListener('pointerenter', (event) => {
      tip.textContent = mark.dataset.tip;
      tip.classList.add('on');
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + 'px';
      tip.style.top = Math.max(8, event.clientY - box.height - 12) + 'px';
    });
    mark.addEventListener('pointerleave', hide);
  }
  addEventListener('scroll', hide, { passive: true });
})();

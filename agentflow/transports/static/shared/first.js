// Before the first paint, and therefore no module: the theme and the language that were chosen, or are the system's.
(() => {
  const chosen = (name) => {
    try {
      return localStorage.getItem(`agentflow.${name}`);
    } catch {
      return null; // storage is off: the system's choice it is
    }
  };
  const theme = chosen('theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  const language = chosen('language') ?? navigator.language;
  document.documentElement.lang = language.startsWith('zh') ? 'zh' : 'en';
})();

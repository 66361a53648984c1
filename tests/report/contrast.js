// What is to be read but stands out from its ground by less than 4.5 (WCAG 2's contrast), as [contrast, what].
const light = (rgb) => {
  const part = rgb.match(/[\d.]+/g).slice(0, 3).map((v) => v / 255);
  const [r, g, b] = part.map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/rgba\(.*, 0\)|color/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const contrast = (e) => {
  const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
return [...document.querySelectorAll("h1, h2, h3, p, td, th, a, button, label, dd, dt, summary, li")]
  .filter((e) => e.checkVisibility() && e.textContent.trim())
  .map((e) => [contrast(e), `${e.tagName} ${e.className} ${e.textContent.trim().slice(0, 30)}`])
  .filter(([found]) => found < 4.5);

// The times of the targets, and what each class of matches gains, as far as they were measured.

import type { Bundle, Gain } from "./data";
import { h, prose, section, table } from "./dom";
import { microseconds, times as factor, titleOf } from "./format";

function speeds(bundle: Bundle, title: string): HTMLElement | null {
  if (!bundle.tuned) return null;
  const entries = Object.entries(bundle.tuned.speeds).sort((one, other) => one[1].us - other[1].us);
  const rows = entries.map(([target, speed]) => [
    target,
    microseconds(speed.us),
    microseconds(speed.fused_us),
    microseconds(speed.unfused_us),
    microseconds(speed.noise_us),
    factor(speed.unfused_us / speed.us),
    `${speed.measured} of ${speed.classes}`,
  ]);
  const untimed = Object.entries(bundle.tuned.untimed).map(([target, reason]) => h("li", {}, `${target}: ${reason}`));
  const columns = ["target", "in the bundle", "every match", "no match", "noise", "speed-up", "classes measured"];
  return h(
    "div",
    {},
    table(`Times of ${title}`, columns.map((name, at) => ({ title: name, number: at > 0 })), rows, `One call of the model, on ${bundle.tuned.device}.`),
    untimed.length ? h("ul", { class: "note" }, ...untimed) : null,
  );
}

function classes(bundle: Bundle, title: string): HTMLElement | null {
  if (bundle.gains.length === 0) return null;
  const verdict = (gain: Gain) => (gain.applied ? "replaced" : "left alone");
  const rows = bundle.gains.map((gain) => [
    gain.rule,
    gain.target,
    String(gain.matches),
    microseconds(gain.fused_us),
    microseconds(gain.unfused_us),
    h("span", { class: gain.low > 1 ? "better" : gain.high < 1 ? "worse" : undefined }, factor(gain.speedup)),
    `${factor(gain.low)} to ${factor(gain.high)}`,
    verdict(gain),
  ]);
  const columns = ["rule", "target", "matches", "with", "without", "speed-up", "99 % interval", "result"];
  return table(
    `Gain of each class of matches of ${title}`,
    columns.map((name, at) => ({ title: name, number: at > 1 && at < 7 })),
    rows,
    "A class is all equal matches of a rule. The times are of one call of the whole model, with the class replaced and without.",
  );
}

export function times(bundles: Bundle[]): HTMLElement {
  const parts = bundles.flatMap((bundle) => {
    const title = titleOf(bundle, bundles);
    const found = [speeds(bundle, title), classes(bundle, title)];
    const none = found.every((one) => one === null);
    return [
      bundles.length > 1 ? h("h3", {}, title) : null,
      ...found,
      none ? prose("absent", "Nothing was timed at this conversion. `fuseconv convert --tune quick` times each target, and each class of matches with and without.") : null,
    ];
  });
  return section("times", "Times", "How long a call takes, and what the matches gain: each class was measured in the whole model.", ...parts);
}

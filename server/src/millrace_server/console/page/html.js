// Templates: htm's tagged strings, which become Preact's elements. Preact sets text as text and styles by the CSSOM.
import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export { Component, render } from "./vendor/preact.js";
export const html = htm.bind(h);

// A reference that gives the focus to an element which appears.
export const focus = (element) => element?.focus();

// Keeps a set of class names readable where some depend on a condition.
export const classes = (...names) => names.filter(Boolean).join(" ");

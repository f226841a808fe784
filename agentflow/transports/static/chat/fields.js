/** The fields of a call's arguments, from their JSON Schema: what a value looks like as text, and what is no value. */

import { number, t } from '../shared/i18n.js';

/**
 * The fields that a form has: those of the schema, and whatever else was given.
 * @param {object} schema @param {object} given
 * @returns {{name: string, schema: object, required: boolean, kind: string}[]} `kind` is "string", "number", "integer",
 *   "boolean", "choice" or "json".
 */
export function fieldsOf(schema, given) {
  const known = schema?.properties ?? {};
  const required = new Set(schema?.required ?? []);
  const names = [...new Set([...Object.keys(known), ...Object.keys(given)])];
  return names.map((name) => {
    const its = Object.hasOwn(known, name) ? known[name] : {};
    return { name, schema: its, required: required.has(name), kind: kindOf(its, given[name]) };
  });
}

function kindOf(schema, value) {
  if (Array.isArray(schema.enum) && schema.enum.every((one) => typeof one === 'string')) return 'choice';
  if (['string', 'number', 'integer', 'boolean'].includes(schema.type)) {
    return value === null || (typeof value === 'object' && value !== undefined) ? 'json' : schema.type;
  }
  if (schema.type === undefined && typeof value === 'string' && schema.anyOf === undefined) return 'string';
  return 'json';
}

/** A value as the text of its field. Undefined, for a field that was left out, is "". */
export function textOf(field, value) {
  if (value === undefined) return '';
  return field.kind === 'string' || field.kind === 'choice' ? String(value) : JSON.stringify(value);
}

/**
 * What stands in a field.
 * @returns {{value?: unknown, fault?: string}} Neither for a field that is left out.
 */
export function read(field, text, wasGiven) {
  if (text === '' && !(field.kind === 'string' && wasGiven)) {
    return field.required ? { fault: t('not.empty') } : {};
  }
  if (field.kind === 'string' || field.kind === 'choice') return { value: text };
  if (field.kind === 'number' || field.kind === 'integer') return readNumber(field, text.trim());
  try {
    return { value: JSON.parse(text) };
  } catch {
    return { fault: t('not.json') };
  }
}

function readNumber({ kind, schema }, text) {
  if (!/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text)) return { fault: t(`not.${kind}`) };
  const value = Number(text);
  if (kind === 'integer' && !Number.isSafeInteger(value)) return { fault: t('not.integer') };
  if (value < schema.minimum) return { fault: t('not.low', { low: number(schema.minimum) }) };
  if (value > schema.maximum) return { fault: t('not.high', { high: number(schema.maximum) }) };
  return { value };
}

/** What may stand in a field, in words. */
export function typeText({ kind, schema, required }) {
  if (kind === 'choice') return schema.enum.join(' · ');
  const type = t(`type.${kind}`);
  const { minimum: low, maximum: high } = schema;
  const values = { type, low: low === undefined ? '' : number(low), high: high === undefined ? '' : number(high) };
  if (low !== undefined && high !== undefined) return t('type.range', values);
  if (low !== undefined) return t('type.from', values);
  if (high !== undefined) return t('type.to', values);
  return required ? type : t('type.optional', values);
}

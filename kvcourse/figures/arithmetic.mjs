// The numbers of the explorers; no drawing here, so that the tests can run it in node.
// kvcourse.codecs.formats and kvcourse.attention.layout hold the same arithmetic in Python.

// Entries that `tokens` tokens leave in a field: {window, stride}; window null keeps all.
export function entries(field, tokens) {
  const kept = field.window === null ? tokens : Math.min(tokens, field.window);
  return Math.floor(kept / field.stride);
}

// Bytes of `count` entries of a field {rows, width, is_key} as a codec writes them.
export function fieldBytes(field, codec, count, fullBytes) {
  const values = field.rows * field.width;
  if (codec.bits === null) return count * values * fullBytes;
  const grouped = field.is_key && codec.group_tokens > 1;
  const closed = Math.max(count - codec.residual_length, 0);
  const encoded = closed - (closed % (grouped ? codec.group_tokens : 1));
  let codes;
  if (grouped) {
    const group = Math.ceil((codec.group_tokens * codec.bits) / 8) + codec.metadata_bytes;
    codes = (encoded / codec.group_tokens) * values * group;
  } else {
    const groups = Math.ceil(field.width / (codec.group_size ?? field.width));
    const row = Math.ceil((field.width * codec.bits) / 8) + groups * codec.metadata_bytes;
    codes = encoded * field.rows * row;
  }
  return codes + (count - encoded) * values * fullBytes;
}

// Bytes of the cache of `batch` requests of `context` tokens each. Field: {layers, rows, width, window, stride, is_key}.
export function cacheBytes(model, codec, context, batch = 1, fullBytes = 2) {
  let total = model.state_bytes;
  for (const field of model.fields) {
    total += field.layers * fieldBytes(field, codec, entries(field, context), fullBytes);
  }
  return total * batch;
}

// Bytes that one more entry of a field adds in the long run, when it has long been encoded.
function entryBytes(field, codec, fullBytes) {
  const first = codec.residual_length + codec.group_tokens;
  const size = (count) => fieldBytes(field, codec, count, fullBytes);
  return (size(first + codec.group_tokens) - size(first)) / codec.group_tokens;
}

// Bytes that one more token adds to the fields that still grow at `context`; a fraction of a byte counts as one.
export function tokenBytes(model, codec, context = 0, fullBytes = 2) {
  let total = 0;
  for (const field of model.fields) {
    const grows = field.window === null || context < field.window;
    if (grows) total += (field.layers * entryBytes(field, codec, fullBytes)) / field.stride;
  }
  return Math.ceil(total);
}

// Work of generating `steps` tokens after a prompt: one forward pass each, the first one being the prefill.
// cells: scores of attention, the masked half included, as kvcourse.flops counts them. cost: {per_token, per_cell,
// per_step}, FLOPs of a token's products with the weights, of one query meeting one key, of the output head.
export function work(prompt, steps, cached, cost) {
  const total = { rows: 0, cells: 0, flops: 0 };
  let last = total;
  for (let step = 0; step < steps; step++) {
    const tokens = prompt + step;
    const rows = cached && step > 0 ? 1 : tokens;
    const cells = cached && step > 0 ? tokens : tokens * tokens;
    last = { rows, cells, flops: rows * cost.per_token + cells * cost.per_cell + cost.per_step };
    for (const key of Object.keys(total)) total[key] += last[key];
  }
  return { last, total };
}

// Attention of one decode step over a cache in bf16, all layers, as kvcourse.flops.decode_attention counts it: FLOPs,
// and bytes that are read once. kind: {heads, layers} and either {kvHeads, headDim}, or {rank, rope} of MLA.
export function decodeCost(kind, context, batch = 1) {
  const latent = kind.rank !== undefined;
  const values = latent ? kind.rank + kind.rope : 2 * kind.kvHeads * kind.headDim; // that a token stores in a layer
  const pair = latent ? 2 * kind.rank + kind.rope : 2 * kind.headDim; // multiplied by one head with one cached token
  const tokens = batch * context * kind.layers;
  const [flops, bytes] = [2 * tokens * kind.heads * pair, 2 * tokens * values];
  return { values, flops, bytes, intensity: flops / bytes };
}

// The least time of work on a machine {peak, bandwidth} in FLOP/s and bytes/s, and which of the two decides it.
export function floor(cost, machine) {
  const [compute, memory] = [cost.flops / machine.peak, cost.bytes / machine.bandwidth];
  return { seconds: Math.max(compute, memory), bound: memory >= compute ? "memory" : "arithmetic" };
}

// Numbers of kv heads that `heads` query heads can share evenly.
export function divisors(heads) {
  return Array.from({ length: heads }, (_, i) => i + 1).filter((count) => heads % count === 0);
}

// Whether values are drawn on a logarithmic scale: all above 0, and a factor of 30 between the ends.
export function steep(values) {
  const low = Math.min(...values);
  return low > 0 && Math.max(...values) >= 30 * low;
}

// Where `value` lies between low and high, 0 to 1, on a scale that is logarithmic when they are steep.
export function place(value, low, high) {
  if (high === low) return 0.5;
  if (steep([low, high])) return Math.log(value / low) / Math.log(high / low);
  return (value - low) / (high - low);
}

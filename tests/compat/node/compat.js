'use strict';
// KafkaJS: arguments are bootstrap, scenario, topic; the last line is JSON. KafkaJS contains
// gzip; snappy, lz4 and zstd are plugged in as its documentation describes. (lz4js does not work
// here: its frames have linked blocks, which Apache Kafka and brokerd reject.)
const fs = require('fs');
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs');
const snappy = require('kafkajs-snappy');
const lz4 = require('lz4-napi');
const zstd = require('@bokuweb/zstd-wasm');

CompressionCodecs[CompressionTypes.Snappy] = snappy;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: async (buffer) => lz4.decompressFrame(buffer),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});

const [bootstrap, scenario] = process.argv.slice(2);
// The scenario "create" uses a topic that does not exist yet.
const topic = process.argv[4] + (scenario === 'create' ? '-new' : '');
const BASE_MS = 1760000000000;
const PARTITIONS = 4;
// The last row of a full set is longer than any codec's block.
const ROWS = 51;
const BIG_BYTES = 390000;
// The driver prepares the topic of the scenario "reset" with offsets 3 to 19.
const RESET_START = 3;
const RESET_END = 20;
const CODECS = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 };

/** The security settings that the driver requests. */
function security() {
  const given = JSON.parse(process.env.COMPAT_SECURITY || '{}');
  if (!given.trusted) return {};
  const settings = { ssl: { ca: [fs.readFileSync(given.trusted)] } };
  if (given.certificate) {
    settings.ssl.cert = fs.readFileSync(given.certificate);
    settings.ssl.key = fs.readFileSync(given.key);
  }
  if (given.mechanism) {
    settings.sasl = { mechanism: given.mechanism.toLowerCase() };
    if (given.user) {
      settings.sasl.username = given.user;
      settings.sasl.password = given.password;
    }
    if (given.token) settings.sasl.oauthBearerProvider = async () => ({ value: given.token });
  }
  return settings;
}

const kafka = new Kafka({
  brokers: [bootstrap], clientId: 'compat', logLevel: logLevel.ERROR, ...security(),
});

function check(holds, what) {
  if (!holds) throw new Error(what);
}

async function waitFor(what, condition) {
  const endMs = Date.now() + 45000;
  while (!(await condition())) {
    check(Date.now() < endMs, `waited 45 s for: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

function value(number) {
  const length = number < ROWS - 1 ? number * 13 : BIG_BYTES;
  return Buffer.from(Array.from({ length }, (_, place) => (number * 7 + place) % 256));
}

async function produce(stem, count, codec, partition) {
  const producer = kafka.producer({ idempotent: codec === 'none', maxInFlightRequests: 1 });
  await producer.connect();
  const messages = Array.from({ length: count }, (_, number) => ({
    key: `${stem}-${number}`, value: value(number), partition,
    timestamp: String(BASE_MS + 1000 * number),
  }));
  await producer.send({ topic, messages, acks: -1, compression: CODECS[codec] });
  await producer.disconnect();
}

/** Starts a member of `group`; `seen` is called with each message. */
async function member(group, seen, commit, fromBeginning = true) {
  const consumer = kafka.consumer({
    groupId: group, sessionTimeout: 6000, heartbeatInterval: 1000, rebalanceTimeout: 15000,
  });
  const state = { consumer, share: [], keys: new Set() };
  consumer.on(consumer.events.GROUP_JOIN, (event) => {
    state.share = event.payload.memberAssignment[topic] || [];
  });
  consumer.on(consumer.events.REBALANCING, () => { state.share = []; });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning });
  await consumer.run({
    autoCommit: commit,
    eachMessage: async ({ partition, message }) => {
      state.keys.add(message.key.toString());
      if (seen) await seen(partition, message);
    },
  });
  return state;
}

/** KafkaJS reads only in groups: a seek in a group with one member replaces an assignment. */
async function readBack(stem, start, first, count) {
  const rows = [];
  const reader = await member(`${topic}-reader-${stem}`, (_, message) => {
    if (Number(message.offset) >= start && rows.length < count) rows.push(message);
  }, false);
  reader.consumer.seek({ topic, partition: 0, offset: String(start) });
  await waitFor(`${count} records`, () => rows.length === count);
  await reader.consumer.disconnect();
  rows.forEach((message, place) => {
    const number = first + place;
    check(Number(message.offset) === start + place, `${stem}: offset ${message.offset}`);
    check(message.key.toString() === `${stem}-${number}`, `${stem}: another key`);
    check(message.value.equals(value(number)), `${stem}: another value at ${message.offset}`);
    check(Number(message.timestamp) === BASE_MS + 1000 * number, `${stem}: another timestamp`);
  });
}

async function codecs() {
  await zstd.init();
  let offset = 0;
  for (const codec of Object.keys(CODECS)) {
    await produce(codec, ROWS, codec, 0);
    await readBack(codec, offset, 0, ROWS);
    offset += ROWS;
  }
  return Object.keys(CODECS).join(' ');
}

async function create() {
  await produce('new', 5, 'none', 0);
  await readBack('new', 0, 0, 5);
  return '';
}

async function group() {
  const first = await member(`${topic}-group`, null, true);
  await waitFor('one member with all partitions', () => first.share.length === PARTITIONS);
  const second = await member(`${topic}-group`, null, true);
  await waitFor('two members with half each', () => first.share.length === PARTITIONS / 2
    && second.share.length === PARTITIONS / 2
    && new Set([...first.share, ...second.share]).size === PARTITIONS);
  const sent = [];
  for (let partition = 0; partition < PARTITIONS; partition += 1) {
    await produce(`two${partition}`, 10, 'none', partition);
    for (let number = 0; number < 10; number += 1) sent.push(`two${partition}-${number}`);
  }
  await waitFor('every record at one of two members',
    () => sent.every((key) => first.keys.has(key) || second.keys.has(key)));
  check(second.keys.size > 0, 'the second member got no record');
  await second.consumer.disconnect();
  await waitFor('all partitions back', () => first.share.length === PARTITIONS);
  await produce('one', 10, 'none', PARTITIONS - 1);
  await waitFor('the records after the leave', () => first.keys.has('one-9'));
  await first.consumer.disconnect();
  return '1 > 2 > 1 members';
}

async function resume() {
  await produce('resume', 30, 'none', 0);
  let next = 0;
  for (const end of [10, 30]) {
    const reader = await member(`${topic}-group`, (_, message) => {
      if (next < end) {
        check(Number(message.offset) === next, `offset ${message.offset}, not ${next}`);
        next += 1;
      }
    }, false);
    await waitFor(`${end} records`, () => next === end);
    await reader.consumer.commitOffsets([{ topic, partition: 0, offset: String(end) }]);
    await reader.consumer.disconnect();
  }
  return '';
}

async function withAdmin(use) {
  const client = kafka.admin();
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.disconnect();
  }
}

async function seek() {
  await produce('seek', 20, 'none', 0);
  const rows = await withAdmin((client) => client.fetchTopicOffsetsByTimestamp(
    topic, BASE_MS + 6500));
  check(rows[0].offset === '7', `offset ${rows[0].offset}`);
  await readBack('seek', 7, 7, 13);
  return '';
}

/** Returns the first offset that a new group reads; `nudge` is called between polls. */
async function first(group, fromBeginning, nudge, place) {
  let offset = -1;
  const reader = await member(group, (_, message) => {
    if (offset < 0) offset = Number(message.offset);
  }, false, fromBeginning);
  if (place !== undefined) reader.consumer.seek({ topic, partition: 0, offset: String(place) });
  await waitFor('a first record', async () => {
    if (nudge && offset < 0) await nudge();
    return offset >= 0;
  });
  await reader.consumer.disconnect();
  return offset;
}

async function reset() {
  const start = RESET_START + 2;
  await withAdmin(async (client) => {
    // deleteTopicRecords expects the leader in the metadata: load the metadata first.
    await client.fetchTopicOffsets(topic);
    await client.deleteTopicRecords({
      topic, partitions: [{ partition: 0, offset: String(start) }] });
  });
  let offset = await first(`${topic}-early`, true);
  check(offset === start, `earliest is ${offset}, not ${start}`);
  offset = await first(`${topic}-lost`, true, null, 0);
  check(offset === start, `out of range goes to ${offset}, not ${start}`);
  offset = await first(`${topic}-late`, false, () => produce('late', 1, 'none', 0));
  check(offset >= RESET_END, `latest is ${offset}, below ${RESET_END}`);
  return 'earliest, latest, out of range, delete records';
}

async function topics() {
  const name = `${topic}-made`;
  await withAdmin(async (client) => {
    const count = async () => (await client.fetchTopicMetadata({ topics: [name] }))
      .topics[0].partitions.length;
    await client.createTopics({ topics: [{ topic: name, numPartitions: 3 }] });
    check(await count() === 3, 'not three partitions');
    await client.createPartitions({ topicPartitions: [{ topic: name, count: 5 }] });
    await waitFor('the added partitions', async () => await count() === 5);
    await client.deleteTopics({ topics: [name] });
    await waitFor('the topic to be gone',
      async () => !(await client.listTopics()).includes(name));
  });
  return 'create, describe, delete, add partitions';
}

async function configs() {
  return withAdmin(async (client) => {
    const value = async (type, name, key) => (await client.describeConfigs({
      includeSynonyms: false, resources: [{ type, name }] }))
      .resources[0].configEntries.find((entry) => entry.configName === key).configValue;
    await client.alterConfigs({ validateOnly: false, resources: [{
      type: 2, name: topic, configEntries: [{ name: 'retention.ms', value: '4711000' }] }] });
    check(await value(2, topic, 'retention.ms') === '4711000', 'another retention.ms');
    check(await value(4, '1', 'node.id') === '1', 'another node.id');
    return 'describe, alter';
  });
}

async function groups() {
  const group = `${topic}-group`;
  await produce('groups', 30, 'none', 0);
  const reader = await member(group, null, false);
  await waitFor('the records', () => reader.keys.size === 30);
  await reader.consumer.commitOffsets([{ topic, partition: 0, offset: '10' }]);
  await reader.consumer.disconnect();
  return withAdmin(async (client) => {
    const listed = async () => (await client.listGroups()).groups
      .some((one) => one.groupId === group);
    const committed = async () => (await client.fetchOffsets({ groupId: group, topics: [topic] }))
      [0].partitions[0].offset;
    check(await listed(), 'the group is not listed');
    await waitFor('the group to be empty',
      async () => (await client.describeGroups([group])).groups[0].state === 'Empty');
    check(await committed() === '10', `committed is ${await committed()}, not 10`);
    await client.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '4' }] });
    check(await committed() === '4', `committed is ${await committed()}, not 4`);
    await client.deleteGroups([group]);
    check(!(await listed()), 'a deleted group is listed');
    return 'list, describe, offsets, alter, delete';
  });
}

/** Returns the messages of a topic from its beginning, read in a group with one member. */
async function readTopic(name, count, readUncommitted) {
  const groupId = `${name}-reader-${readUncommitted}`;
  const consumer = kafka.consumer({ groupId, readUncommitted });
  const messages = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [name], fromBeginning: true });
  await consumer.run({
    autoCommit: false, eachMessage: async ({ message }) => { messages.push(message); },
  });
  await waitFor(`${count} records`, () => messages.length >= count);
  await consumer.disconnect();
  return messages;
}

async function transactional(transactionalId) {
  const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  return producer;
}

/** Moves records to `goal` and commits the group's position, in one transaction. */
async function move(source, goal, groupId, isCommitted) {
  const producer = await transactional(`${groupId}-id`);
  const transaction = await producer.transaction();
  await transaction.send({ topic: goal, acks: -1, messages: source.map((message) => ({
    key: message.key, value: message.value, timestamp: message.timestamp, partition: 0 })) });
  const offset = String(Number(source[source.length - 1].offset) + 1);
  await transaction.sendOffsets({
    consumerGroupId: groupId, topics: [{ topic, partitions: [{ partition: 0, offset }] }] });
  await (isCommitted ? transaction.commit() : transaction.abort());
  await producer.disconnect();
}

/** A second producer with the same id starts during a transaction: the first cannot commit. */
async function overtaken(goal, id) {
  const first = await transactional(id);
  const transaction = await first.transaction();
  await transaction.send({ topic: goal, acks: -1, messages: [{ value: 'open', partition: 0 }] });
  const second = await transactional(id);
  await (await second.transaction()).abort();
  let refused = false;
  await transaction.commit().catch(() => { refused = true; });
  check(refused, 'a producer that was overtaken could commit');
  await first.disconnect();
  await second.disconnect();
}

async function transactions() {
  const [goal, group] = [`${topic}-goal`, `${topic}-group`];
  await produce('moved', 40, 'none', 0);
  await withAdmin((client) => client.createTopics({ topics: [{ topic: goal, numPartitions: 1 }] }));
  await overtaken(goal, `${group}-id`);
  const source = await readTopic(topic, 40, true);
  for (const [start, end, isCommitted] of
    [[0, 10, false], [0, 10, true], [10, 25, false], [10, 40, true]]) {
    await move(source.slice(start, end), goal, group, isCommitted);
  }
  const moved = await readTopic(goal, 40, false);
  moved.forEach((message, number) => {
    check(message.key.toString() === `moved-${number}`, `${message.key} at place ${number}`);
    check(message.value.equals(value(number)), `another value at place ${number}`);
  });
  check(moved.length === 40, `${moved.length} committed records`);
  check((await readTopic(goal, 66, true)).length === 66, 'another number of records');
  return withAdmin(async (client) => {
    const rows = await client.fetchOffsets({ groupId: group, topics: [topic] });
    check(rows[0].partitions[0].offset === '40', `committed is ${rows[0].partitions[0].offset}`);
    return 'positions with the records, aborted ones unseen, a second producer of the same id';
  });
}

/** Runs a member until it is killed. It prints its partitions and the keys it reads. */
async function living() {
  const one = await member(`${topic}-group`,
    (_, message) => console.log(`key ${message.key}`), true);
  for (let told = null; ; await new Promise((done) => setTimeout(done, 50))) {
    const share = `share ${one.share.join(' ')}`;
    if (share !== told) console.log(share);
    told = share;
  }
}

const FLOWS = {
  codecs, create, group, member: living, resume, seek, reset, topics, configs, groups,
  transactions,
};
FLOWS[scenario]().then((note) => {
  console.log(JSON.stringify({ ok: true, note }));
  process.exit(0);
}, (failure) => {
  console.error(failure);
  console.log(JSON.stringify({ ok: false, note: String(failure).slice(0, 300) }));
  process.exit(1);
});

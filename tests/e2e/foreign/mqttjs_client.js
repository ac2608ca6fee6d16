// What a client wants of a broker, asked by MQTT.js: connect, QoS 0, 1 and 2, retained messages, a will, a session that goes on.
//
// mqttjs_client.js VERSION URL [CAFILE]; prints what is good, and ends with an error at the first thing that is not.
const assert = require('node:assert');
const fs = require('node:fs');
const mqtt = require('mqtt');

const [version, url, cafile] = [Number(process.argv[2]), process.argv[3], process.argv[4]];
const PATIENCE_MS = 30_000;

function within(what, promise) {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`waited in vain: ${what}`)), PATIENCE_MS); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function connect(clientId, clean = true, more = {}) {
  const options = { clientId, clean, protocolVersion: version, reconnectPeriod: 0, connectTimeout: PATIENCE_MS, ...more };
  if (cafile) options.ca = fs.readFileSync(cafile);
  if (version === 5 && !clean) options.properties = { sessionExpiryInterval: 600 };
  const client = mqtt.connect(url, options);
  const [messages, waiting] = [[], []];
  client.on('message', (topic, payload, packet) => {
    const message = [topic, payload.toString(), packet.qos, packet.retain];
    if (waiting.length > 0) waiting.shift()(message); else messages.push(message);
  });
  client.on('error', (error) => { throw error; });
  const next = () => (messages.length > 0 ? Promise.resolve(messages.shift()) : new Promise((resolve) => waiting.push(resolve)));
  const connack = await within('CONNACK', new Promise((resolve) => client.once('connect', resolve)));
  return {
    client,
    isPresent: connack.sessionPresent,
    async subscribe(topic, qos) {
      const granted = await within('SUBACK', client.subscribeAsync(topic, { qos }));
      assert.deepStrictEqual(granted.map((one) => one.qos), [qos]);
    },
    publish: (topic, payload, qos, retain = false) => within('publish', client.publishAsync(topic, payload, { qos, retain })),
    async expect(topic, payload, qos, retain = false) {
      assert.deepStrictEqual(await within(payload, next()), [topic, payload, qos, retain]);
    },
    end: () => within('end', client.endAsync()),
  };
}

async function main() {
  const [one, two] = [await connect('one'), await connect('two')];
  for (const qos of [0, 1, 2]) {
    await one.subscribe(`qos/${qos}`, qos);
    for (const payload of ['first', 'x'.repeat(100_000), '']) {
      await two.publish(`qos/${qos}`, payload, qos);
      await one.expect(`qos/${qos}`, payload, qos);
    }
  }
  console.log('qos');
  await two.publish('kept', 'retained', 1, true);
  await one.subscribe('kept', 1);
  await one.expect('kept', 'retained', 1, true);
  await two.publish('kept', '', 1, true);
  await one.expect('kept', '', 1);
  console.log('retained');
  await one.subscribe('will', 1);
  const dying = await connect('dying', true, { will: { topic: 'will', payload: Buffer.from('gone'), qos: 1, retain: false } });
  dying.client.stream.destroy();
  await one.expect('will', 'gone', 1);
  console.log('will');
  const away = await connect('away', false);
  assert(!away.isPresent);
  await away.subscribe('missed', 2);
  await away.end();
  for (let number = 0; number < 5; number += 1) await two.publish('missed', String(number), 2);
  const back = await connect('away', false);
  assert(back.isPresent);
  for (let number = 0; number < 5; number += 1) await back.expect('missed', String(number), 2);
  await back.end();
  await (await connect('away')).end();
  console.log('resumed');
  await one.end();
  await two.end();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});

// A client of DuckDB. With a database and a statement as arguments it prints the rows as JSON, as
// "duckdb -readonly -json" does; without any it takes orders, one JSON object a line, and answers each.
const { DuckDBInstance } = require('@duckdb/node-api');
const readline = require('node:readline');

async function rows(connection, sql) {
  const result = await connection.runAndReadAll(sql);
  return result.getRowObjectsJson();
}

// held are connections that stay open, by the paths of their databases.
const held = new Map();

async function obey(order) {
  let [instance, connection] = held.get(order.path) ?? [];
  if (!instance) {
    instance = await DuckDBInstance.create(order.path, order.readOnly ? { access_mode: 'READ_ONLY' } : {});
    connection = await instance.connect();
  }
  const answer = [];
  try {
    for (const sql of order.sql ?? []) answer.push(await rows(connection, sql));
  } finally {
    if (order.die) process.exit(0); // without closing anything
    if (order.hold) {
      held.set(order.path, [instance, connection]);
    } else {
      held.delete(order.path);
      connection.closeSync();
      instance.closeSync();
    }
  }
  return answer;
}

async function main(args) {
  if (args.length === 2) {
    const [answer] = await obey({ path: args[0], sql: [args[1]], readOnly: true });
    console.log(JSON.stringify(answer));
    return;
  }
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let reply;
    try {
      reply = { rows: await obey(JSON.parse(line)) };
    } catch (e) {
      reply = { error: String(e.message ?? e) };
    }
    console.log(JSON.stringify(reply));
  }
}

main(process.argv.slice(2)).catch((e) => {
  console.error(String(e.message ?? e));
  process.exit(1);
});

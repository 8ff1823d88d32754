// What programs written with the JavaScript client do to a server.

import assert from 'node:assert/strict';
import * as k8s from '@kubernetes/client-node';

import { gone, refused, run, until } from './suite.mjs';

const namespace = process.env.SUITE_NAMESPACE ?? 'javascript';
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);

const configMap = (name, labels = {}) => ({ metadata: { name, labels }, data: { k: 'v' } });
const create = (name, labels) => core.createNamespacedConfigMap({ namespace, body: configMap(name, labels) });
const patchWith = (type) => k8s.setHeaderOptions('Content-Type', type);
const patch = (name, body, type = k8s.PatchStrategy.MergePatch) =>
    core.patchNamespacedConfigMap({ namespace, name, body }, patchWith(type));

function deployment(name, replicas) {
    const labels = { app: name };
    const containers = [{ name: 'main', image: 'registry.example/main:1' }];
    return {
        metadata: { name },
        spec: { replicas, selector: { matchLabels: labels }, template: { metadata: { labels }, spec: { containers } } },
    };
}

async function makesNamespace() {
    await core.createNamespace({ body: { metadata: { name: namespace } } });
    await until('the default ServiceAccount', async () => {
        const list = await core.listNamespacedServiceAccount({ namespace });
        return list.items.some((one) => one.metadata.name === 'default');
    });
}

async function lives() {
    const made = await create('life', { a: 'b' });
    assert.ok(made.metadata.uid && made.metadata.creationTimestamp instanceof Date);
    made.data.k = 'w';
    const put = await core.replaceNamespacedConfigMap({ namespace, name: 'life', body: made });
    assert.equal(put.data.k, 'w');
    const list = await core.listNamespacedConfigMap({ namespace, labelSelector: 'a=b', fieldSelector: 'metadata.name=life' });
    assert.deepEqual(list.items.map((one) => one.metadata.uid), [made.metadata.uid]);
    const status = await core.deleteNamespacedConfigMap({ namespace, name: 'life' });
    assert.equal(status.status, 'Success');
    await gone('the ConfigMap', () => core.readNamespacedConfigMap({ namespace, name: 'life' }));
}

async function refusals() {
    await create('taken');
    await refused(404, 'NotFound', () => core.readNamespacedConfigMap({ namespace, name: 'none' }));
    await refused(409, 'AlreadyExists', () => create('taken'));
    const invalid = await refused(422, 'Invalid', () => create('Not_A_Name'));
    assert.equal(invalid.details.causes[0].field, 'metadata.name');
    const stale = await core.readNamespacedConfigMap({ namespace, name: 'taken' });
    await patch('taken', { data: { k: 'w' } });
    await refused(409, 'Conflict', () => core.replaceNamespacedConfigMap({ namespace, name: 'taken', body: stale }));
}

async function patches() {
    const { JsonPatch, MergePatch, ServerSideApply, StrategicMergePatch } = k8s.PatchStrategy;
    await apps.createNamespacedDeployment({ namespace, body: deployment('patched', 0) });
    const change = (body, type, options = {}) =>
        apps.patchNamespacedDeployment({ namespace, name: 'patched', body, ...options }, patchWith(type));
    const containers = [{ name: 'side', image: 'registry.example/side:1' }];
    const names = (object) => object.spec.template.spec.containers.map((one) => one.name);
    const body = { spec: { template: { spec: { containers } } } };
    assert.deepEqual(names(await change(body, StrategicMergePatch)), ['side', 'main']);
    assert.deepEqual(names(await change(body, MergePatch)), ['side']);
    const listed = await change([{ op: 'add', path: '/metadata/labels', value: { x: 'y' } }], JsonPatch);
    assert.deepEqual(listed.metadata.labels, { x: 'y' });
    // Without a header it is a JSON patch: the default of this client.
    const plain = await apps.patchNamespacedDeployment({ namespace, name: 'patched', body: [{ op: 'remove', path: '/metadata/labels/x' }] });
    assert.equal(plain.metadata.labels, undefined);
    const apply = { apiVersion: 'apps/v1', kind: 'Deployment', metadata: { name: 'patched' }, spec: { replicas: 0, minReadySeconds: 3 } };
    const applied = await change(apply, ServerSideApply, { fieldManager: 'ship', force: true });
    assert.ok(applied.spec.minReadySeconds === 3 && applied.metadata.managedFields.some((one) => one.manager === 'ship'));
    apply.spec.minReadySeconds = 5;
    const conflict = await refused(409, 'Conflict', () => change(apply, ServerSideApply, { fieldManager: 'pirate' }));
    assert.equal(conflict.details.causes[0].field, '.spec.minReadySeconds');
}

async function subresources() {
    // Controllers write to it, too.
    await until('a write without conflict', async () => {
        const scale = await apps.readNamespacedDeploymentScale({ namespace, name: 'patched' });
        scale.spec = { replicas: 1 };
        try {
            const put = await apps.replaceNamespacedDeploymentScale({ namespace, name: 'patched', body: scale });
            return put.spec.replicas === 1;
        } catch (error) {
            if (error.code === 409) {
                return false;
            }
            throw error;
        }
    });
    const status = { status: { collisionCount: 3 }, spec: { replicas: 9 } };
    const put = await apps.patchNamespacedDeploymentStatus({ namespace, name: 'patched', body: status }, patchWith(k8s.PatchStrategy.MergePatch));
    assert.ok(put.status.collisionCount === 3 && put.spec.replicas === 1);
}

async function objects() {
    const api = k8s.KubernetesObjectApi.makeApiClient(config);
    const spec = { apiVersion: 'networking.k8s.io/v1', kind: 'NetworkPolicy', metadata: { name: 'any', namespace }, spec: { podSelector: {} } };
    const made = await api.create(spec);
    assert.deepEqual(made.spec.policyTypes, ['Ingress']);
    const found = await api.read({ apiVersion: spec.apiVersion, kind: spec.kind, metadata: { name: 'any', namespace } });
    assert.equal(found.metadata.uid, made.metadata.uid);
    spec.spec.policyTypes = ['Egress'];
    const applied = await api.patch(spec, undefined, undefined, 'ship', true, k8s.PatchStrategy.ServerSideApply);
    assert.deepEqual(applied.spec.policyTypes, ['Egress']);
    const list = await api.list(spec.apiVersion, spec.kind, namespace);
    assert.equal(list.items.length, 1);
    await api.delete(spec);
    await gone('the NetworkPolicy', () => api.read(spec));
}

async function watches() {
    const before = (await core.listNamespacedConfigMap({ namespace })).metadata.resourceVersion;
    const told = [];
    const query = { resourceVersion: before, labelSelector: 'set=watched', allowWatchBookmarks: true };
    const over = new Promise((resolve, reject) => {
        const hear = (type, object) => {
            told.push(`${type} ${object.data.k}`);
            if (type === 'DELETED') {
                resolve();
            }
        };
        new k8s.Watch(config).watch(`/api/v1/namespaces/${namespace}/configmaps`, query, hear, reject);
    });
    await create('watched', { set: 'watched' });
    await patch('watched', { data: { k: 'w' } });
    await core.deleteNamespacedConfigMap({ namespace, name: 'watched' });
    await over;
    assert.deepEqual(told, ['ADDED v', 'MODIFIED w', 'DELETED w']);
}

/** An informer over the ConfigMaps of a set; every watch of it ends after `seconds` at the server's side. */
function informer(set, seconds) {
    const labelSelector = `set=${set}`;
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const list = () => core.listNamespacedConfigMap({ namespace, labelSelector });
    const watch = new k8s.Watch(config);
    const short = { watch: (path, query, hear, done) => watch.watch(path, { ...query, timeoutSeconds: seconds }, hear, done) };
    return new k8s.ListWatch(path, short, list, false, labelSelector, undefined, { delayFn: async () => {} });
}

async function informs() {
    await create('cached-0', { set: 'cached' });
    const cache = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`,
        () => core.listNamespacedConfigMap({ namespace, labelSelector: 'set=cached' }), 'set=cached');
    const heard = [];
    for (const verb of ['add', 'update', 'delete']) {
        cache.on(verb, (object) => heard.push(`${verb} ${object.metadata.name}`));
    }
    await cache.start();
    assert.equal(cache.list(namespace).length, 1);
    await create('cached-1', { set: 'cached' });
    await patch('cached-1', { data: { k: 'w' } });
    await patch('cached-1', { metadata: { labels: { set: 'elsewhere' } } });
    await until('four events', () => heard.length >= 4);
    assert.deepEqual(heard, ['add cached-0', 'add cached-1', 'update cached-1', 'delete cached-1']);
    await cache.stop();
}

async function reconnects() {
    const cache = informer('again', 1);
    let connects = 0;
    const added = [];
    cache.on('connect', () => { connects += 1; });
    cache.on('add', (object) => added.push(object.metadata.name));
    await cache.start();
    for (let number = 0; number < 6; number += 1) {
        await create(`again-${number}`, { set: 'again' });
        await until('the cache', () => cache.list(namespace).length === number + 1);
        await new Promise((resolve) => setTimeout(resolve, 500));
    }
    await cache.stop();
    assert.ok(connects >= 3, `connected ${connects} times`);
    assert.deepEqual(added, [0, 1, 2, 3, 4, 5].map((number) => `again-${number}`));
}

async function relists() {
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const watch = new k8s.Watch(config);
    // The first revision of all: long forgotten, so that the informer has to list again.
    let lists = 0;
    const list = async () => {
        lists += 1;
        const found = await core.listNamespacedConfigMap({ namespace, labelSelector: 'set=again' });
        return lists === 1 ? { ...found, metadata: { resourceVersion: '1' } } : found;
    };
    const cache = new k8s.ListWatch(path, watch, list, false, 'set=again', undefined, { delayFn: async () => {} });
    await cache.start();
    await until('the second list', () => lists === 2);
    await create('again-6', { set: 'again' });
    await until('the cache', () => cache.get('again-6', namespace));
    await cache.stop();
}

async function pages() {
    const names = [];
    let token;
    do {
        const page = await core.listNamespacedConfigMap({ namespace, labelSelector: 'set=again', limit: 3, _continue: token });
        names.push(...page.items.map((one) => one.metadata.name));
        token = page.metadata._continue;
    } while (token);
    assert.deepEqual(names, [0, 1, 2, 3, 4, 5, 6].map((number) => `again-${number}`));
    await core.deleteCollectionNamespacedConfigMap({ namespace, labelSelector: 'set=again' });
    assert.equal((await core.listNamespacedConfigMap({ namespace, labelSelector: 'set=again' })).items.length, 0);
}

async function leaves() {
    await core.deleteNamespace({ name: namespace });
    await gone('the namespace', () => core.readNamespace({ name: namespace }));
}

await run([
    ['a namespace is made, and gets what each namespace has', makesNamespace],
    ['an object lives from create to delete', lives],
    ['refusals carry a Status with its reason', refusals],
    ['each type of patch is chosen by an option', patches],
    ['status and scale are written apart from the spec', subresources],
    ['objects of any kind are read, applied and deleted by discovery', objects],
    ['a watch tells of all that happens, in order', watches],
    ['an informer hears of every change, and of leaving a selector', informs],
    ['an informer whose watches end connects again and misses nothing', reconnects],
    ['an informer from a forgotten revision lists again', relists],
    ['pages go on where the last one ended', pages],
    ['a namespace goes with all that is in it', leaves],
]);

// Programs written with fabric8's client, against the server that KUBECONFIG names.

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.NamespaceBuilder;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.api.model.apps.Deployment;
import io.fabric8.kubernetes.api.model.apps.DeploymentBuilder;
import io.fabric8.kubernetes.api.model.batch.v1.Job;
import io.fabric8.kubernetes.api.model.batch.v1.JobBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.fabric8.kubernetes.client.dsl.base.PatchContext;
import io.fabric8.kubernetes.client.dsl.base.PatchType;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.informers.SharedIndexInformer;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderCallbacks;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderElectionConfigBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.resourcelock.LeaseLock;
import java.io.File;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public final class ClientSuite {
    private static final String NAMESPACE = System.getenv().getOrDefault("SUITE_NAMESPACE", "java");
    private static final long PATIENCE_SECONDS = 60;

    private final KubernetesClient client;

    private interface Check {
        void run() throws Exception;
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private ClientSuite(KubernetesClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        boolean passed;
        // Only the kubeconfig: no environment, no ServiceAccount of a pod.
        Config config = Config.fromKubeconfig(new File(System.getenv("KUBECONFIG")));
        try (KubernetesClient client = new KubernetesClientBuilder().withConfig(config).build()) {
            passed = new ClientSuite(client).runAll();
        }
        System.out.println("end");
        System.exit(passed ? 0 : 1);
    }

    private boolean runAll() {
        boolean passed = check("the kubeconfig's key can be read and the server answers", this::connects);
        passed &= check("a namespace is made, with its default ServiceAccount", this::makesNamespace);
        passed &= check("create, get, list, replace and delete", this::lives);
        passed &= check("refusals have the right codes and reasons", this::refusals);
        passed &= check("JSON, merge and strategic merge patches", this::patches);
        passed &= check("server-side apply, and its conflict", this::applies);
        passed &= check("scale and status of a Deployment, which becomes ready", this::scales);
        passed &= check("a Job runs to its end", this::runsJob);
        passed &= check("logs of a pod can be asked for", this::asksForLogs);
        passed &= check("a watch shows every change", this::watches);
        passed &= check("an informer follows, and its index finds", this::informs);
        passed &= check("generic resources, by discovery", this::generic);
        passed &= check("leader election by a Lease", this::elects);
        passed &= check("the namespace goes with all in it", this::deletesNamespace);
        return passed;
    }

    private boolean check(String says, Check check) {
        long start = System.nanoTime();
        boolean passed = true;
        try {
            check.run();
        } catch (Throwable error) {
            passed = false;
            error.printStackTrace(System.out);
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        System.out.printf(java.util.Locale.ROOT, "check {\"says\": \"%s\", \"seconds\": %.3f, \"passed\": %b}%n", says, seconds, passed);
        return passed;
    }

    private static void ensure(boolean holds, Object found) {
        if (!holds) {
            throw new IllegalStateException("found " + found);
        }
    }

    private static void until(String what, Condition condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (!condition.holds()) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("still not: " + what);
            }
            Thread.sleep(50);
        }
    }

    private static KubernetesClientException refused(int code, String reason, Check request) throws Exception {
        try {
            request.run();
        } catch (KubernetesClientException error) {
            ensure(error.getCode() == code && reason.equals(error.getStatus().getReason()), error);
            return error;
        }
        throw new IllegalStateException("accepted, not refused with " + code + " " + reason);
    }

    private static ConfigMap configMap(String name, Map<String, String> labels) {
        return new ConfigMapBuilder().withNewMetadata().withName(name).withNamespace(NAMESPACE).withLabels(labels).endMetadata()
            .addToData("k", "v").build();
    }

    private static Deployment deployment(String name, int replicas) {
        Map<String, String> labels = Map.of("app", name);
        return new DeploymentBuilder().withNewMetadata().withName(name).withNamespace(NAMESPACE).endMetadata()
            .withNewSpec().withReplicas(replicas).withNewSelector().withMatchLabels(labels).endSelector()
            .withNewTemplate().withNewMetadata().withLabels(labels).endMetadata()
            .withNewSpec().addNewContainer().withName("main").withImage("registry.example/main:1").endContainer().endSpec()
            .endTemplate().endSpec().build();
    }

    private void connects() {
        ensure(client.getKubernetesVersion().getMinor().startsWith("36"), client.getKubernetesVersion().getGitVersion());
        ensure(client.hasApiGroup("apps", true), "no group apps");
    }

    private void makesNamespace() throws Exception {
        client.namespaces().resource(new NamespaceBuilder().withNewMetadata().withName(NAMESPACE).endMetadata().build()).create();
        until("the default ServiceAccount", () -> client.serviceAccounts().inNamespace(NAMESPACE).withName("default").get() != null);
    }

    private void lives() throws Exception {
        ConfigMap made = client.resource(configMap("life", Map.of("a", "b"))).create();
        ensure(made.getMetadata().getUid() != null, made);
        made.getData().put("k", "w");
        ensure("w".equals(client.resource(made).update().getData().get("k")), made);
        List<ConfigMap> items = client.configMaps().inNamespace(NAMESPACE).withLabel("a", "b").withField("metadata.name", "life").list().getItems();
        ensure(items.size() == 1 && items.get(0).getMetadata().getUid().equals(made.getMetadata().getUid()), items);
        client.resource(made).delete();
        until("the ConfigMap is gone", () -> client.resource(made).get() == null);
    }

    private void refusals() throws Exception {
        ConfigMap taken = client.resource(configMap("taken", Map.of())).create();
        refused(409, "AlreadyExists", () -> client.resource(configMap("taken", Map.of())).create());
        KubernetesClientException invalid = refused(422, "Invalid", () -> client.resource(configMap("Not_A_Name", Map.of())).create());
        ensure("metadata.name".equals(invalid.getStatus().getDetails().getCauses().get(0).getField()), invalid);
        client.resource(taken).edit(one -> new ConfigMapBuilder(one).addToData("k", "w").build());
        refused(409, "Conflict", () -> client.resource(taken).lockResourceVersion(taken.getMetadata().getResourceVersion()).update());
    }

    private void patches() {
        client.resource(deployment("patched", 0)).create();
        var resource = client.apps().deployments().inNamespace(NAMESPACE).withName("patched");
        String side = "{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"side\",\"image\":\"registry.example/side:1\"}]}}}}";
        Deployment merged = resource.patch(PatchContext.of(PatchType.STRATEGIC_MERGE), side);
        ensure(merged.getSpec().getTemplate().getSpec().getContainers().size() == 2, merged);
        merged = resource.patch(PatchContext.of(PatchType.JSON_MERGE), side);
        ensure(merged.getSpec().getTemplate().getSpec().getContainers().size() == 1, merged);
        merged = resource.patch(PatchContext.of(PatchType.JSON), "[{\"op\":\"add\",\"path\":\"/metadata/labels\",\"value\":{\"x\":\"y\"}}]");
        ensure("y".equals(merged.getMetadata().getLabels().get("x")), merged);
    }

    private void applies() throws Exception {
        ConfigMap applied = client.resource(configMap("applied", Map.of())).fieldManager("ship").serverSideApply();
        ensure(applied.getMetadata().getManagedFields().stream().anyMatch(one -> "ship".equals(one.getManager())), applied);
        ConfigMap other = configMap("applied", Map.of());
        other.setData(Map.of("k", "pirate"));
        KubernetesClientException conflict = refused(409, "Conflict", () -> client.resource(other).fieldManager("pirate").serverSideApply());
        ensure(".data.k".equals(conflict.getStatus().getDetails().getCauses().get(0).getField()), conflict);
        ensure("pirate".equals(client.resource(other).fieldManager("pirate").forceConflicts().serverSideApply().getData().get("k")), other);
    }

    private void scales() throws Exception {
        client.resource(deployment("scaled", 1)).create();
        var resource = client.apps().deployments().inNamespace(NAMESPACE).withName("scaled");
        resource.waitUntilReady(PATIENCE_SECONDS, TimeUnit.SECONDS);
        ensure(resource.scale(3).getSpec().getReplicas() == 3, resource.get());
        until("three are ready", () -> Objects.equals(resource.get().getStatus().getReadyReplicas(), 3));
        List<Pod> pods = client.pods().inNamespace(NAMESPACE).withLabel("app", "scaled").list().getItems();
        ensure(pods.size() == 3, pods.size());
        resource.rolling().restart();
        until("the restart is rolled out", () -> {
            Deployment now = resource.get();
            return Objects.equals(now.getStatus().getObservedGeneration(), now.getMetadata().getGeneration())
                && Objects.equals(now.getStatus().getUpdatedReplicas(), 3) && Objects.equals(now.getStatus().getReplicas(), 3);
        });
    }

    private void runsJob() throws Exception {
        Job job = new JobBuilder().withNewMetadata().withName("job").withNamespace(NAMESPACE).endMetadata()
            .withNewSpec().withNewTemplate().withNewSpec().withRestartPolicy("Never")
            .addNewContainer().withName("main").withImage("registry.example/job:1").endContainer().endSpec().endTemplate().endSpec().build();
        client.resource(job).create();
        client.batch().v1().jobs().inNamespace(NAMESPACE).withName("job")
            .waitUntilCondition(one -> one != null && one.getStatus() != null && Objects.equals(one.getStatus().getSucceeded(), 1),
                PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    private void asksForLogs() throws Exception {
        Pod pod = client.pods().inNamespace(NAMESPACE).withLabel("app", "scaled").list().getItems().get(0);
        ensure(client.pods().resource(pod).getLog() != null, pod);
        refused(404, "NotFound", () -> client.pods().inNamespace(NAMESPACE).withName("none").getLog());
    }

    private void watches() throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        Watcher<ConfigMap> watcher = new Watcher<>() {
            @Override
            public void eventReceived(Action action, ConfigMap object) {
                events.add(action + " " + object.getData().get("k"));
            }

            @Override
            public void onClose(WatcherException cause) {
                events.add("closed");
            }
        };
        try (var ignored = client.configMaps().inNamespace(NAMESPACE).withLabel("set", "watched").watch(watcher)) {
            ConfigMap made = client.resource(configMap("watched", Map.of("set", "watched"))).create();
            client.resource(made).edit(one -> new ConfigMapBuilder(one).addToData("k", "w").build());
            client.resource(made).delete();
            for (String expected : List.of("ADDED v", "MODIFIED w", "DELETED w")) {
                ensure(expected.equals(events.poll(PATIENCE_SECONDS, TimeUnit.SECONDS)), events);
            }
        }
    }

    private void informs() throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        ResourceEventHandler<ConfigMap> handler = new ResourceEventHandler<>() {
            @Override
            public void onAdd(ConfigMap object) {
                events.add("add " + object.getMetadata().getName());
            }

            @Override
            public void onUpdate(ConfigMap before, ConfigMap after) {
                events.add("update " + after.getData().get("k"));
            }

            @Override
            public void onDelete(ConfigMap object, boolean unknown) {
                events.add("delete " + object.getMetadata().getName());
            }
        };
        client.resource(configMap("early", Map.of("set", "informed"))).create();
        try (SharedIndexInformer<ConfigMap> informer =
                client.configMaps().inNamespace(NAMESPACE).withLabel("set", "informed").inform(handler)) {
            ensure("add early".equals(events.poll(PATIENCE_SECONDS, TimeUnit.SECONDS)), events);
            ConfigMap made = client.resource(configMap("late", Map.of("set", "informed"))).create();
            ensure("add late".equals(events.poll(PATIENCE_SECONDS, TimeUnit.SECONDS)), events);
            client.resource(made).edit(one -> new ConfigMapBuilder(one).addToData("k", "w").build());
            ensure("update w".equals(events.poll(PATIENCE_SECONDS, TimeUnit.SECONDS)), events);
            ensure(informer.getIndexer().getByKey(NAMESPACE + "/late") != null, informer.getIndexer().listKeys());
            client.resource(made).delete();
            ensure("delete late".equals(events.poll(PATIENCE_SECONDS, TimeUnit.SECONDS)), events);
        }
    }

    private void generic() throws Exception {
        var resource = client.genericKubernetesResources("networking.k8s.io/v1", "NetworkPolicy").inNamespace(NAMESPACE);
        GenericKubernetesResource policy = new GenericKubernetesResource();
        policy.setApiVersion("networking.k8s.io/v1");
        policy.setKind("NetworkPolicy");
        policy.setMetadata(new io.fabric8.kubernetes.api.model.ObjectMetaBuilder().withName("any").withNamespace(NAMESPACE).build());
        policy.setAdditionalProperty("spec", Map.of("podSelector", Map.of()));
        GenericKubernetesResource made = resource.resource(policy).create();
        ensure("[Ingress]".equals(Objects.toString(made.<Object>get("spec", "policyTypes"))), made);
        ensure(resource.list().getItems().size() == 1, resource.list());
        resource.withName("any").delete();
        until("the NetworkPolicy is gone", () -> resource.withName("any").get() == null);
    }

    private void elects() throws Exception {
        CountDownLatch leads = new CountDownLatch(1);
        var config = new LeaderElectionConfigBuilder().withName("suite").withLock(new LeaseLock(NAMESPACE, "leader", "one"))
            .withLeaseDuration(Duration.ofSeconds(4)).withRenewDeadline(Duration.ofSeconds(3)).withRetryPeriod(Duration.ofMillis(500))
            .withReleaseOnCancel(true)
            .withLeaderCallbacks(new LeaderCallbacks(leads::countDown, () -> { }, identity -> { })).build();
        var elector = client.leaderElector().withConfig(config).build();
        var done = elector.start();
        ensure(leads.await(PATIENCE_SECONDS, TimeUnit.SECONDS), "no leader");
        ensure("one".equals(client.leases().inNamespace(NAMESPACE).withName("leader").get().getSpec().getHolderIdentity()), "another holder");
        done.cancel(true);
    }

    private void deletesNamespace() throws Exception {
        client.namespaces().withName(NAMESPACE).delete();
        until("the namespace is gone", () -> client.namespaces().withName(NAMESPACE).get() == null);
    }
}

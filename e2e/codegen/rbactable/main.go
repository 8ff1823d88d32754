// Command rbactable writes the roles and bindings that kube-apiserver bootstraps, as one JSON object per line.
// Roles of controllers and nodes are left out: no such identity exists in a logical cluster.
//
//	go run ./codegen/rbactable > ../crates/strategy/data/rbac.json
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// foreign tells whether a role or binding serves an identity that only exists beside a real node or controller manager.
func foreign(name string) bool {
	for _, prefix := range []string{"system:controller:", "system:node", "system:kube-", "system:certificates.k8s.io:", "system:volume-scheduler", "system:persistent-volume-provisioner", "system:kubelet-api-admin", "system:kube-aggregator", "system:heapster"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func main() {
	out := json.NewEncoder(os.Stdout)
	emit := func(kind string, meta metav1.ObjectMeta, object map[string]any) {
		if foreign(meta.Name) {
			return
		}
		metadata := map[string]any{"name": meta.Name}
		if meta.Namespace != "" {
			metadata["namespace"] = meta.Namespace
		}
		if len(meta.Labels) > 0 {
			metadata["labels"] = meta.Labels
		}
		if len(meta.Annotations) > 0 {
			metadata["annotations"] = meta.Annotations
		}
		object["kind"], object["apiVersion"], object["metadata"] = kind, "rbac.authorization.k8s.io/v1", metadata
		if err := out.Encode(object); err != nil {
			log.Fatal(err)
		}
	}
	for _, role := range bootstrappolicy.ClusterRoles() {
		object := map[string]any{}
		if role.AggregationRule != nil {
			object["aggregationRule"] = role.AggregationRule
		} else {
			object["rules"] = role.Rules
		}
		emit("ClusterRole", role.ObjectMeta, object)
	}
	for _, binding := range bootstrappolicy.ClusterRoleBindings() {
		emit("ClusterRoleBinding", binding.ObjectMeta, map[string]any{"subjects": binding.Subjects, "roleRef": binding.RoleRef})
	}
	// All others are for the identities of a controller manager.
	for _, role := range bootstrappolicy.NamespaceRoles()[metav1.NamespaceSystem] {
		if role.Name == "extension-apiserver-authentication-reader" {
			emit("Role", role.ObjectMeta, map[string]any{"rules": role.Rules})
		}
	}
}

// Celtable prints the functions of Kubernetes' CEL environment, one overload a line, for crates/cel/src/functions.txt:
// the function, the overload, `member` or `global`, the result and the arguments' types.
package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/google/cel-go/common/types"
	"k8s.io/apiserver/pkg/cel/environment"
)

func main() {
	env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).NewExpressionsEnv()
	functions := env.Functions()
	names := make([]string, 0, len(functions))
	for name := range functions {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if functions[name].IsDeclarationDisabled() {
			continue
		}
		for _, overload := range functions[name].OverloadDecls() {
			style := "global"
			if overload.IsMemberFunction() {
				style = "member"
			}
			args := make([]string, 0)
			for _, arg := range overload.ArgTypes() {
				args = append(args, text(arg))
			}
			fmt.Println(name, overload.ID(), style, text(overload.ResultType()), strings.Join(args, " "))
		}
	}
}

// text writes a type without spaces; a type parameter is marked by an apostrophe.
func text(t *types.Type) string {
	if t.Kind() == types.TypeParamKind {
		return "'" + t.TypeName()
	}
	if len(t.Parameters()) == 0 {
		return t.DeclaredTypeName()
	}
	parameters := make([]string, 0)
	for _, parameter := range t.Parameters() {
		parameters = append(parameters, text(parameter))
	}
	return t.TypeName() + "(" + strings.Join(parameters, ",") + ")"
}

package main

import (
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// words are values that defaulting functions look at, or that mean nothing to them.
var words = []string{"", "a", "a:v1", "a:latest", "storage", "cpu"}

// surround fills, at random, the structs on the way to a place, and a little beside it.
func (p *prober) surround(value reflect.Value, steps []step) {
	p.fill(value, 2)
	for i := range steps {
		p.fill(descend(value, steps[:i+1]), 2)
	}
}

// fill sets a value at random, to some depth.
func (p *prober) fill(value reflect.Value, depth int) {
	switch value.Addr().Interface().(type) {
	case *metav1.Time:
		value.Set(reflect.ValueOf(metav1.NewTime(time.Unix(int64(p.random.Intn(1<<30)), 0).UTC())))
		return
	case *metav1.MicroTime:
		value.Set(reflect.ValueOf(metav1.NewMicroTime(time.Unix(int64(p.random.Intn(1<<30)), 1000).UTC())))
		return
	case *resource.Quantity:
		value.Set(reflect.ValueOf(resource.MustParse([]string{"0", "1", "100m", "1Gi"}[p.random.Intn(4)])))
		return
	case *intstr.IntOrString:
		value.Set(reflect.ValueOf([]intstr.IntOrString{intstr.FromInt32(0), intstr.FromInt32(7), intstr.FromString("25%")}[p.random.Intn(3)]))
		return
	case *metav1.FieldsV1, *runtime.RawExtension, *metav1.ObjectMeta, *metav1.TypeMeta:
		return
	}
	if _, special := specials[goPath(value.Type())]; special {
		return
	}
	switch value.Kind() {
	case reflect.String:
		value.SetString(words[p.random.Intn(len(words))])
	case reflect.Bool:
		value.SetBool(p.random.Intn(2) == 0)
	case reflect.Int32, reflect.Int64:
		value.SetInt(int64([]int{0, 1, 8080}[p.random.Intn(3)]))
	case reflect.Pointer:
		if p.random.Intn(2) == 0 && depth > 0 {
			value.Set(reflect.New(value.Type().Elem()))
			p.fill(value.Elem(), depth-1)
		}
	case reflect.Slice:
		if p.random.Intn(2) == 0 && depth > 0 && value.Type().Elem().Kind() != reflect.Uint8 {
			value.Set(reflect.MakeSlice(value.Type(), 1, 1))
			p.fill(value.Index(0), depth-1)
		}
	case reflect.Map:
		if p.random.Intn(2) == 0 && depth > 0 {
			key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
			key.SetString(words[1+p.random.Intn(len(words)-1)])
			p.fill(element, depth-1)
			value.Set(reflect.MakeMap(value.Type()))
			value.SetMapIndex(key, element)
		}
	case reflect.Struct:
		if depth > 0 {
			p.fillStruct(value, depth)
		}
	}
}

func (p *prober) fillStruct(value reflect.Value, depth int) {
	known := p.table.Types[definitionName(value.Type())]
	for i := range value.NumField() {
		field := value.Field(i)
		p.fill(field, depth-1)
		if known == nil {
			continue
		}
		entry := known.field(jsonName(value.Type().Field(i)))
		if entry == nil || len(entry.Enum) == 0 || strings.HasPrefix(entry.Type, "[]") || p.random.Intn(4) == 0 {
			continue
		}
		if field.Kind() == reflect.Pointer && !field.IsNil() {
			field = field.Elem()
		}
		if field.Kind() == reflect.String {
			field.SetString(entry.Enum[p.random.Intn(len(entry.Enum))])
		}
	}
}

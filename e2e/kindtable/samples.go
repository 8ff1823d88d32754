package main

func writeSamples(string, *table) error   { return nil }
func writeDiscovery(string, *table) error { return nil }

//! The agent's reverse connection: the place of the tunnel over which physical clusters that cannot be reached dial in. There is
//! no agent yet, and a `PhysicalCluster` with a `tunnel` connection says so in its `Ready` condition.

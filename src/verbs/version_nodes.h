// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The version nodes of private symbols. rdma-core gives the node a new number when a private symbol changes, and a
/// distribution has the node of its release. It is 34 in rdma-core 34 to 56 (Ubuntu 22.04 and 24.04, Debian 12 and 13),
/// and 57, 59, 64 and 65 later. All of them are here, so the providers' libraries of each distribution load beside one
/// build.
/// Link-time optimisation does not see what the assembler names, so a file that includes this is compiled without it.

/// Exports `symbol` as `name` in one node: NUPA_IN_NODE(symbol, name, "@", 57). "@@" makes it the one that programs are
/// linked to. The assembler takes one version of a symbol, so it makes an alias for each node.
#define NUPA_IN_NODE(symbol, name, at, node)       \
  __asm__(".globl nupa_" #node "_" #name           \
          "\n\t"                                   \
          ".set nupa_" #node "_" #name "," #symbol \
          "\n\t"                                   \
          ".symver nupa_" #node "_" #name "," #name at "IBVERBS_PRIVATE_" #node);
#define NUPA_IN_LATER_NODES(symbol, name) \
  NUPA_IN_NODE(symbol, name, "@", 57)     \
  NUPA_IN_NODE(symbol, name, "@", 59)     \
  NUPA_IN_NODE(symbol, name, "@", 64)     \
  NUPA_IN_NODE(symbol, name, "@", 65)
#define NUPA_IN_EACH_NODE(symbol, name) \
  NUPA_IN_NODE(symbol, name, "@@", 34)  \
  NUPA_IN_LATER_NODES(symbol, name)

#pragma once
/// The `nupa` program: one file a command. commands.h has the functions that main.cc calls, one thread runs each.
#include "cli/commands.h"
#include "cli/transport_alias.h"

// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The `nupa` program, with one file for each command. commands.h has the functions that main.cc calls. One thread runs
/// each.
#include "cli/commands.h"
#include "cli/definitions.h"
#include "cli/failure.h"
#include "cli/finding.h"
#include "cli/ranges.h"
#include "cli/transport_alias.h"
#include "cli/waiting.h"

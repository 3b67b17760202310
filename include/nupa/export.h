// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Marks what the shared library exports.

/// Exports a function or class from the shared library. Symbols without it are hidden.
#define NUPA_EXPORT __attribute__((visibility("default")))

#pragma once
/// Marks what the shared library shows to programs; everything else stays inside.
#define NUPA_EXPORT __attribute__((visibility("default")))

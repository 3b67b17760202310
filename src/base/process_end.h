#pragma once
/// What is left to do when the process ends: peers are told, what is owed to them is sent.

namespace nupa::base {

/// Has `handler` run at exit(), or before it by run_process_end(); the last registered runs first, each once. From one
/// thread at a time. 0, or ENOMEM.
int at_process_end(void (*handler)());

/// Runs them now. Any thread, once; later calls, and exit(), do nothing.
void run_process_end();

}  // namespace nupa::base

#pragma once

namespace weft {

/// The rate of f32 multiply-adds on registers of one thread, in FLOP/s, with the widest instruction
/// set of this CPU that WEFT_ISA allows: the peak of a matrix product. Takes a few milliseconds.
double measure_thread_flops();

}  // namespace weft

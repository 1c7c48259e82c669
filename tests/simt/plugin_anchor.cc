// A module needs a source of its own; all that the plug-in has comes from the library lockstep_cuda_emulated.

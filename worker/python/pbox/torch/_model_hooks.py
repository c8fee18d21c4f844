"""The hooks of a model whose weights come from the box."""

import functools

from ..errors import InvalidArgument


class _Hook:
    """A hook of a module. A copy of the module has no part in the job, so copy and pickle replace
    the hook by one that does nothing."""

    __slots__ = ("_function",)

    def __init__(self, function=None):
        self._function = function

    def __call__(self, *arguments):
        if self._function is not None:
            self._function(*arguments)

    def __reduce__(self):
        return _Hook, ()


class _Layer:
    """A module with parameters of its own. `names`: of these parameters, in the module. `seen`: its
    forward() has been called before."""

    __slots__ = ("names", "slots", "seen")

    def __init__(self, names, slots):
        self.names = names
        self.slots = slots
        self.seen = False


class ModelHooks:
    """Hooks that make forward() and state_dict() wait for the weights that they read, and make
    load_state_dict() refuse to write weights. `wait_for` waits for a list of slots. `root_called`:
    the model's forward() was called since the optimizer has last reset this. The model may be
    None; `handles` is then empty."""

    def __init__(self, model, slots, wait_for):
        self.root_called = False
        self.handles = []
        self._model = model
        self._wait_for = wait_for
        by_parameter = {id(slot.parameter): slot for slot in slots}
        self._layers = {}  # by module
        modules = tuple(model.modules()) if model is not None else ()
        for module in modules:
            named = {name: by_parameter[id(parameter)]
                     for name, parameter in module.named_parameters(recurse=False)
                     if id(parameter) in by_parameter}
            if named:
                self._layers[module] = _Layer(tuple(named), tuple(named.values()))
        for module in modules:
            self._install(module)

    def _install(self, module):
        below = {name: self._layers[part] for name, part in module.named_modules()
                 if part in self._layers}  # the module itself too, by the name ""
        if not below:
            return
        layers = tuple(below.values())
        before = module.register_forward_pre_hook(_Hook(
            functools.partial(self._before_forward, layers)))
        # The hooks of weight_norm, spectral_norm and prune read parameters.
        module._forward_pre_hooks.move_to_end(before.id, last=False)
        names = [f"{name}.{own}" if name else own for name, layer in below.items()
                 for own in layer.names]
        self.handles += [
            before,
            # The tensors of state_dict() share memory with the parameters, so it is early enough to
            # wait after they have been collected.
            module._register_state_dict_hook(_Hook(
                functools.partial(self._wait_for_layers, layers))),
            module._register_load_state_dict_pre_hook(_Hook(
                functools.partial(_refuse_to_load, names)))]

    def _before_forward(self, layers, module, _):
        if module is self._model:
            self.root_called = True
        own = self._layers.get(module)
        if own is not None:
            own.seen = True
            self._wait_for(own.slots)
        # Some layers are never called; only their weights are read (attention's projections).
        # Modules in eval mode may read the weights of any layer below them without calling it.
        self._wait_for_layers(layer for layer in layers if not (layer.seen and module.training))

    def _wait_for_layers(self, layers, *_):
        for layer in layers:
            self._wait_for(layer.slots)


def _refuse_to_load(names, state_dict, prefix, *_):
    for name in names:
        if prefix + name in state_dict:
            raise InvalidArgument(
                f"load_state_dict() would write {prefix}{name}, and the box, which keeps the "
                "weights, would overwrite it in the next step: load before you make the "
                "DistributedOptimizer, or after its close(); restore=\"latest\" continues from a "
                "snapshot")
